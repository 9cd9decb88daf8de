#include "parallel/pipeline_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/error.h"

namespace ingot::parallel {
namespace {

using base::ConfigError;

// The k-th forward or backward of a stage with several chunks: microbatches go through a chunk in groups of `stages`.
Action interleaved(const PipelineShape& s, Pass pass, int k) {
  const int group = s.stages * s.chunks, in_group = k % group, chunk = in_group / s.stages;
  return {pass, pass == Pass::forward ? chunk : s.chunks - 1 - chunk, k / group * s.stages + k % s.stages};
}

std::vector<Action> one_f_one_b(const PipelineShape& s, int stage) {
  const int total = s.microbatches * s.chunks;
  int warm_up = s.stages - 1 - stage;
  if (s.schedule == Schedule::interleaved) warm_up = (s.stages - 1 - stage) * 2 + (s.chunks - 1) * s.stages;
  warm_up = std::min(warm_up, total);
  const auto at = [&](Pass pass, int k) { return s.chunks == 1 ? Action{pass, 0, k} : interleaved(s, pass, k); };
  std::vector<Action> actions;
  for (int k = 0; k < warm_up; ++k) actions.push_back(at(Pass::forward, k));
  for (int k = warm_up; k < total; ++k) {
    actions.push_back(at(Pass::forward, k));
    actions.push_back(at(Pass::backward, k - warm_up));
  }
  for (int k = total - warm_up; k < total; ++k) actions.push_back(at(Pass::backward, k));
  return actions;
}

// A stage's gradients of weights lag behind by its number, so that stages send on as soon as they can; what is left fills the
// waits at the end, one behind each backward.
std::vector<Action> zero_bubble(const PipelineShape& s, int stage) {
  std::vector<Action> actions;
  int weights = 0, backwards = 0;
  for (const Action& action : one_f_one_b({Schedule::one_f_one_b, s.stages, 1, s.microbatches}, stage)) {
    actions.push_back(action);
    if (action.pass != Pass::backward) continue;
    if (++backwards > stage) actions.push_back({Pass::weights, 0, weights++});
  }
  while (weights < s.microbatches) actions.push_back({Pass::weights, 0, weights++});
  return actions;
}

}  // namespace

Schedule schedule_from_name(const std::string& name) {
  if (name == "gpipe") return Schedule::gpipe;
  if (name == "1f1b") return Schedule::one_f_one_b;
  if (name == "interleaved") return Schedule::interleaved;
  if (name == "zero_bubble") return Schedule::zero_bubble;
  throw ConfigError("unknown pipeline schedule '{}'; it is gpipe, 1f1b, interleaved or zero_bubble", name);
}

void check(const PipelineShape& s) {
  if (s.schedule == Schedule::interleaved) {
    if (s.chunks < 2) throw ConfigError("parallel.pipeline_schedule = interleaved needs parallel.pipeline_chunks of at least 2");
    if (s.microbatches % s.stages != 0)
      throw ConfigError(
          "an interleaved pipeline of {} stages needs a multiple of {} microbatches per step and data rank, not {}; {} would work",
          s.stages, s.stages, s.microbatches, (s.microbatches / s.stages + 1) * s.stages);
  } else if (s.chunks != 1) {
    throw ConfigError("parallel.pipeline_chunks = {} needs parallel.pipeline_schedule = interleaved", s.chunks);
  }
}

std::vector<Action> actions_of(const PipelineShape& s, int stage) {
  if (s.schedule == Schedule::zero_bubble) return zero_bubble(s, stage);
  if (s.schedule != Schedule::gpipe) return one_f_one_b(s, stage);
  std::vector<Action> actions;
  for (const Pass pass : {Pass::forward, Pass::backward})
    for (int m = 0; m < s.microbatches; ++m) actions.push_back({pass, 0, m});
  return actions;
}

Timeline simulate(const PipelineShape& s, const PassCosts& costs) {
  Timeline line;
  line.kept.assign(static_cast<size_t>(s.stages), 0);
  std::vector<std::vector<Action>> todo;
  for (int stage = 0; stage < s.stages; ++stage) todo.push_back(actions_of(s, stage));
  std::vector<size_t> next(todo.size(), 0);
  std::vector<double> free_at(todo.size(), 0);
  std::vector<int> held(todo.size(), 0);
  std::map<std::tuple<Pass, int, int>, double> done;  // pass, piece, microbatch -> when
  const bool splits = s.schedule == Schedule::zero_bubble;
  const auto ready = [&](int piece, const Action& a) -> double {
    const auto when = [&](Pass pass, int p) {
      const auto found = done.find({pass, p, a.microbatch});
      return found == done.end() ? -1.0 : found->second;
    };
    if (a.pass == Pass::forward) return piece == 0 ? 0 : when(Pass::forward, piece - 1);
    if (a.pass == Pass::weights) return when(Pass::backward, piece);
    const double own = when(Pass::forward, piece);
    const double behind = piece + 1 == s.pieces() ? own : when(Pass::backward, piece + 1);
    return own < 0 || behind < 0 ? -1 : std::max(own, behind);
  };
  double busy = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < s.stages; ++stage) {
      const auto i = static_cast<size_t>(stage);
      while (next[i] < todo[i].size()) {
        const Action& a = todo[i][next[i]];
        const int piece = s.piece_of(stage, a.chunk);
        const double from = ready(piece, a);
        if (from < 0) break;
        const double cost = a.pass == Pass::forward   ? costs.forward
                            : a.pass == Pass::weights ? costs.weights
                            : splits                  ? costs.backward
                                                      : costs.backward + costs.weights;
        const double begin = std::max(from, free_at[i]);
        line.entries.push_back({stage, a, begin, begin + cost});
        done[{a.pass, piece, a.microbatch}] = free_at[i] = begin + cost;
        busy += cost;
        held[i] += a.pass == Pass::forward ? 1 : a.pass == (splits ? Pass::weights : Pass::backward) ? -1 : 0;
        line.kept[i] = std::max(line.kept[i], held[i]);
        ++next[i];
        moved = true;
      }
    }
  }
  for (size_t i = 0; i < todo.size(); ++i)
    if (next[i] < todo[i].size()) throw base::NumericError("the pipeline schedule would wait for ever on stage {}, action {}", i, next[i]);
  for (const double end : free_at) line.end = std::max(line.end, end);
  line.bubble = 1 - busy / (line.end * s.stages);
  return line;
}

std::string draw(const PipelineShape& s, const PassCosts& costs) {
  const auto line = simulate(s, costs);
  constexpr size_t kWidth = 4;  // of a unit of time
  std::string text;
  for (int stage = 0; stage < s.stages; ++stage) {
    std::string row(static_cast<size_t>(std::lround(line.end)) * kWidth, ' ');
    for (const auto& e : line.entries) {
      if (e.stage != stage) continue;
      const auto label =
          fmt::format("{}{}{}", s.chunks > 1 ? std::string(1, static_cast<char>('a' + e.action.chunk)) : "", e.action.microbatch + 1,
                      e.action.pass == Pass::forward    ? ""
                      : e.action.pass == Pass::backward ? "'"
                                                        : "w");
      const auto from = static_cast<size_t>(std::lround(e.begin)) * kWidth, to = static_cast<size_t>(std::lround(e.end)) * kWidth;
      row.replace(from, to - from, fmt::format("{:-<{}}", label, to - from - 1) + " ");
    }
    text += fmt::format("stage {} |{}\n", stage, row);
  }
  return text;
}

}  // namespace ingot::parallel
