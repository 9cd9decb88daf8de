// Why a step fails again and again: it is tried in ways that differ from the job in one thing each, beside the run and without writing to
// it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::resilience {

struct Trial {
  const char* name;
  const char* what;                // in words
  std::vector<std::string> flags;  // of ingot train
  int rotation = 0;                // of the ranks over the processes: each works on what the one before it had
};

/// In this order: as it was, with the weights of replicas compared after each step; with the ranks rotated, if there are several; in fp32.
std::vector<Trial> trials(int ranks);

struct TrialOutcome {
  std::string name;
  bool passed = false;
  int rank = -1;                 // that failed; -1: none, or several alike
  bool replicas_differ = false;  // as the comparison of weights said
};

/// What the outcomes say about a failure of `rank` (-1: of several alike), and what to do: one sentence or two.
std::string verdict(int rank, const std::vector<TrialOutcome>& outcomes);

/// `command`, a call of ingot train, with these flags over its own.
std::vector<std::string> command_of_trial(const std::vector<std::string>& command, const std::vector<std::string>& flags);

/// Flags by which a trial goes through `step` of a run without writing to it: from the newest checkpoint before it, into `folder`.
/// `checkpoints`: the run's checkpoints.jsonl, as far as it is there.
std::vector<std::string> flags_of_trials(int64_t step, const std::string& folder, const std::string& checkpoints);

}  // namespace ingot::resilience
