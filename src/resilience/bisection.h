// Why a step fails again and again: it is tried in ways that differ from the job in one thing each, beside the run and without writing to
// it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "resilience/round.h"

namespace ingot::resilience {

struct Trial {
  const char* name = "";
  const char* what = "";           // in words
  std::vector<std::string> flags;  // of ingot train
  int64_t rotation = 0;            // each process works on what the one so many ranks behind it had; 0: on its own
};

/// In this order: as it was, with the weights of replicas compared after each step; with the work rotated, over the nodes or on one node
/// over its processes; in fp32.
std::vector<Trial> trials(const Round& round);

/// How a trial, or the failure itself, went on one node.
struct NodeOutcome {
  bool passed = false;
  int64_t failed = 0;            // ranks of this node that ended by themselves with a failure
  int64_t rank = -1;             // that alone failed, of this node
  bool replicas_differ = false;  // as the comparison of weights said
  int64_t odd = -1;              // and the rank that it found against the others; -1: no side has a majority
  std::string what;
};

/// Of the last lines of a rank that failed: whether replicas differ, and which.
void read_replicas(const std::vector<std::string>& last_lines, NodeOutcome& outcome);

/// On all nodes.
struct TrialOutcome {
  std::string name;
  bool passed = false;
  int64_t rank = -1;             // that failed; -1: none, or several alike
  bool replicas_differ = false;  // then `rank` is the one that has no other on its side
  int64_t rotation = 0;          // as of the trial
};
TrialOutcome combine(const Trial& trial, const std::vector<NodeOutcome>& nodes);

enum class Advice : uint8_t {
  give_up,
  go_on,           // it was chance
  leave_out_node,  // the failure goes with it
};

struct Verdict {
  std::string what;  // a sentence or two
  Advice advice = Advice::give_up;
  size_t node = 0;  // to leave out
};

/// What the outcomes say about a failure of `rank` in `round` (-1: of several alike).
Verdict verdict(const Round& round, int64_t rank, const std::vector<TrialOutcome>& outcomes);

/// `command`, a call of ingot train, with these flags over its own.
std::vector<std::string> command_of_trial(const std::vector<std::string>& command, const std::vector<std::string>& flags);

/// Flags by which a trial goes through `step` of a run without writing to it: from the newest checkpoint before it, into `folder`.
/// `checkpoints`: the run's checkpoints.jsonl, as far as it is there.
std::vector<std::string> flags_of_trials(int64_t step, const std::string& folder, const std::string& checkpoints);

}  // namespace ingot::resilience
