#include "resilience/bisection.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

namespace ingot::resilience {
namespace {

constexpr const char *kAgain = "again", *kRotated = "rotated", *kWide = "fp32";
// As train/replica_check.cpp says it.
constexpr const char *kReplicasDiffer = "ranks that hold the same weights differ", *kOdd = "against them stands rank ";

const TrialOutcome* find(const std::vector<TrialOutcome>& outcomes, std::string_view name) {
  const auto found = std::find_if(outcomes.begin(), outcomes.end(), [&](const auto& o) { return o.name == name; });
  return found == outcomes.end() ? nullptr : &*found;
}

}  // namespace

std::vector<Trial> trials(const Round& round) {
  std::vector<Trial> all = {{kAgain, "as it was, comparing replicas", {"--set", "resilience.check_replicas_every=1"}}};
  if (round.nodes.size() > 1) all.push_back({kRotated, "each rank on the next node", {}, round.nodes[0].ranks});
  else if (round.ranks() > 1) all.push_back({kRotated, "each rank in the process of its neighbour", {}, 1});
  all.push_back({kWide, "in fp32", {"--set", "train.precision=fp32"}});
  return all;
}

void read_replicas(const std::vector<std::string>& last_lines, NodeOutcome& outcome) {
  for (const auto& line : last_lines) {
    if (line.find(kReplicasDiffer) == std::string::npos) continue;
    outcome.replicas_differ = true;
    const auto odd = line.find(kOdd);
    if (odd == std::string::npos) return;
    const char *first = line.data() + odd + std::strlen(kOdd), *last = line.data() + line.size();
    std::from_chars(first, last, outcome.odd);
  }
}

TrialOutcome combine(const Trial& trial, const std::vector<NodeOutcome>& nodes) {
  TrialOutcome all{.name = trial.name, .passed = true, .rotation = trial.rotation};
  int64_t failed = 0, odd = -1;
  for (const auto& node : nodes) {
    all.passed = all.passed && node.passed;
    failed += node.failed;
    if (node.rank >= 0) all.rank = node.rank;
    if (node.replicas_differ && node.odd >= 0) odd = node.odd;
    all.replicas_differ = all.replicas_differ || node.replicas_differ;
  }
  if (all.replicas_differ) all.rank = odd;
  else if (failed != 1) all.rank = -1;
  return all;
}

Verdict verdict(const Round& round, int64_t rank, const std::vector<TrialOutcome>& outcomes) {
  const auto *again = find(outcomes, kAgain), *rotated = find(outcomes, kRotated), *wide = find(outcomes, kWide);
  const auto leave_out = [&](size_t node, const std::string& why) {
    const bool is_alone = round.nodes.size() == 1;
    return Verdict{
        .what = fmt::format("{}: {}", why,
                            is_alone ? "this node is left out" : fmt::format("node {} ({}) is left out", node, round.nodes[node].host)),
        .advice = Advice::leave_out_node,
        .node = node};
  };
  if (again && again->replicas_differ) {
    const auto node = again->rank < 0 ? round.nodes.size() : round.node_of(again->rank);
    if (node < round.nodes.size())
      return leave_out(
          node, fmt::format("ranks that hold the same weights differ, rank {} from most: its machine computes wrongly", again->rank));
    return {.what =
                "ranks that hold the same weights differ, and no side has a majority: one of their machines computes wrongly. `ingot "
                "doctor --fit` judges a node"};
  }
  if (again && again->passed)
    return {.what =
                "it passed when it was only repeated: this is chance, as a machine makes it, and not the data. `ingot bench all --check` "
                "judges a node",
            .advice = Advice::go_on};
  if (wide && wide->passed)
    return {.what =
                "it passes in fp32: numbers leave the range of the precision. A lower optimizer.lr, train.z_loss or fp32 for a while get "
                "over it"};
  const char* const place = round.nodes.size() > 1 ? "node" : "process";
  if (rotated && rotated->passed)
    return {.what = fmt::format("it passed when each rank ran {}: neither the data alone nor the {} alone. What the {} differ in (files, "
                                "cores, GPUs, libraries) is worth a look",
                                round.nodes.size() > 1 ? "on another node" : "in another process", place,
                                round.nodes.size() > 1 ? "nodes" : "processes' places")};
  if (rotated && rotated->rank >= 0 && rotated->rank == rank)
    return {.what = fmt::format("it goes with what rank {} has to do, and not with where it runs: the data, the settings, or a bug. Other "
                                "data: data.seed, or a checkpoint before",
                                rank)};
  if (rotated && rotated->rank >= 0 && rank >= 0) {
    // The process that did the work of `rotated->rank`.
    const int64_t at = (rotated->rank - rotated->rotation + round.ranks()) % round.ranks();
    const size_t node = round.node_of(rank);
    if (round.nodes.size() > 1 ? round.node_of(at) == node : at == rank)
      return leave_out(node, fmt::format("rank {} failed, and rank {} when it ran in its place: it goes with the {}, and not with the data",
                                         rank, rotated->rank, place));
  }
  return {.what = "it fails in each of these ways: the data, the settings, or a bug. Other data: data.seed, or a checkpoint before"};
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
