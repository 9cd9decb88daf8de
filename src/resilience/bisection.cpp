#include "resilience/bisection.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

namespace ingot::resilience {
namespace {

constexpr const char *kAgain = "again", *kRotated = "rotated", *kWide = "fp32";

const TrialOutcome* find(const std::vector<TrialOutcome>& outcomes, std::string_view name) {
  const auto found = std::find_if(outcomes.begin(), outcomes.end(), [&](const auto& o) { return o.name == name; });
  return found == outcomes.end() ? nullptr : &*found;
}

}  // namespace

std::vector<Trial> trials(int ranks) {
  std::vector<Trial> all = {{kAgain, "as it was, comparing replicas", {"--set", "resilience.check_replicas_every=1"}}};
  if (ranks > 1) all.push_back({kRotated, "each rank in the process of its neighbour", {}, 1});
  all.push_back({kWide, "in fp32", {"--set", "train.precision=fp32"}});
  return all;
}

std::string verdict(int rank, const std::vector<TrialOutcome>& outcomes) {
  const auto *again = find(outcomes, kAgain), *rotated = find(outcomes, kRotated), *wide = find(outcomes, kWide);
  if (again && again->replicas_differ)
    return fmt::format("ranks that hold the same weights differ, rank {} first: its machine computes wrongly. Leave its node out",
                       again->rank);
  if (again && again->passed)
    return "it passed when it was only repeated: this is chance, as a machine makes it, and not the data. `ingot bench all --check` judges "
           "a node";
  if (wide && wide->passed)
    return "it passes in fp32: numbers leave the range of the precision. A lower optimizer.lr, train.z_loss or fp32 for a while get over "
           "it";
  if (rotated && rotated->passed)
    return "it passed when each rank ran in another process of the machine: what belongs to the processes' places (cores, GPUs) differs. "
           "Leave this node out";
  if (rotated && rotated->rank == rank && rank >= 0)
    return fmt::format(
        "it goes with what rank {} has to do, and not with where it runs: the data, the settings, or a bug. Other data: data.seed, or a "
        "checkpoint before",
        rank);
  if (rotated && rotated->rank >= 0 && rank >= 0)
    return fmt::format(
        "rank {} failed, and rank {} when it ran in another process: it goes with the place, and not with the data. Leave this node out",
        rank, rotated->rank);
  return "it fails in each of these ways: the data, the settings, or a bug. Other data: data.seed, or a checkpoint before";
}

std::vector<std::string> command_of_trial(const std::vector<std::string>& command, const std::vector<std::string>& flags) {
  const auto is_replaced = [&](const std::string& word) {
    return (word == "--run-dir" || word == "--resume" || word == "--stop-after") &&
           std::find(flags.begin(), flags.end(), word) != flags.end();
  };
  std::vector<std::string> words;
  for (size_t i = 0; i < command.size(); ++i) {
    if (is_replaced(command[i].substr(0, command[i].find('=')))) i += command[i].find('=') == std::string::npos ? 1 : 0;
    else words.push_back(command[i]);
  }
  words.insert(words.end(), flags.begin(), flags.end());
  return words;
}

std::vector<std::string> flags_of_trials(int64_t step, const std::string& folder, const std::string& checkpoints) {
  std::string from = "never";
  std::istringstream lines(checkpoints);
  for (std::string line; std::getline(lines, line);) {
    try {
      const auto entry = nlohmann::json::parse(line);
      if (entry.at("kind") != "save" || entry.at("where") != "folder" || entry.at("ok") != true) continue;
      if (entry.at("step").get<int64_t>() < step) from = entry.at("path").get<std::string>();
    } catch (const nlohmann::json::exception&) {  // a torn line, or none of ours
    }
  }
  return {"--no-forecast",
          "--run-dir",
          folder,
          "--resume",
          from,
          "--stop-after",
          std::to_string(step),
          "--set",
          "checkpoint.every=0",
          "--set",
          "checkpoint.memory_every=0"};
}

}  // namespace ingot::resilience
