#include "plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/log.h"

namespace ingot::plan {
namespace {

// Choices whose lower bound is so far behind the best are not worth a look.
constexpr double kFarBehind = 1.5;
constexpr double kAllocatorReserve = 0.94;  // of a device's memory: fragments, and what libraries take

std::vector<int64_t> divisors(int64_t n, int64_t most) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= std::min(n, most); ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

std::vector<int64_t> powers_of_2(int64_t most) {
  std::vector<int64_t> all;
  for (int64_t n = 1; n <= most; n *= 2) all.push_back(n);
  return all;
}

std::vector<mesh::ParallelConfig> meshes_of(const SearchSpace& s) {
  std::vector<mesh::ParallelConfig> all;
  const auto add = [&](mesh::ParallelConfig p) {
    const int64_t others = p.pipeline * p.context * p.tensor * p.tensor_sequence;
    if (s.devices % others != 0) return;
    p.data = s.devices / others;
    if (s.batch % p.data != 0) return;
    const int64_t stage = s.devices / p.pipeline;
    for (const int64_t expert : s.has_experts ? divisors(s.experts, std::min<int64_t>(stage, 64)) : std::vector<int64_t>{1}) {
      if (stage % expert != 0) continue;
      p.expert = expert;
      all.push_back(p);
    }
  };
  for (const int64_t pipeline : divisors(s.devices, s.layers)) {
    for (const int64_t sequence : powers_of_2(std::min<int64_t>(s.devices, std::max<int64_t>(1, s.seq / 1024))))
      for (const int64_t tensor : powers_of_2(std::min({s.devices, s.devices_per_node, s.heads}))) {
        // Beside a tensor axis keys and values are modelled as gathered, whatever the method.
        const bool is_gathered = sequence > 1 && tensor > 1;
        for (const char* method : {"ring", "allgather", "ulysses"}) {
          if (sequence == 1 && method != std::string_view("ring")) continue;
          if (is_gathered && method != std::string_view("allgather")) continue;
          mesh::ParallelConfig p;
          p.pipeline = pipeline, p.context = sequence, p.tensor = tensor;
          p.context_method = method;
          if (s.mixes_linearly) p.context_order = "contiguous";
          add(p);
        }
        if (sequence > 1 || tensor == 1) continue;
        mesh::ParallelConfig p;
        p.pipeline = pipeline, p.tensor_sequence = tensor;
        if (s.mixes_linearly) p.context_order = "contiguous";
        add(p);
      }
  }
  return all;
}

const char* name_of(models::Recompute recompute) {
  return recompute == models::Recompute::none ? "none" : recompute == models::Recompute::selective ? "selective" : "full";
}

void keep_pareto(SearchResult& result) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const auto& judged : result.fitting) {  // by time
    if (judged.memory.total_bytes() >= least) continue;
    least = judged.memory.total_bytes();
    result.pareto.push_back(judged);
  }
}

}  // namespace

SearchResult search(const SearchSpace& space, const Judge& judge, const std::function<void(int64_t, int64_t)>& on_mesh) {
  using models::Recompute;
  SearchResult result;
  const auto room = static_cast<int64_t>(kAllocatorReserve * static_cast<double>(space.memory_bytes));
  double best_s = std::numeric_limits<double>::infinity();
  const auto meshes = meshes_of(space);
  result.meshes = static_cast<int64_t>(meshes.size());
  const auto fits_at_least = [&](const Choice& choice) {
    const int64_t bytes = judge.least_bytes(choice);
    if (!result.smallest || bytes < result.smallest_bytes) result.smallest = choice, result.smallest_bytes = bytes;
    return bytes <= room;
  };
  for (size_t i = 0; i < meshes.size(); ++i) {
    if (on_mesh) on_mesh(static_cast<int64_t>(i), result.meshes);
    Choice choice{.parallel = meshes[i]};
    const int64_t own = space.batch / choice.parallel.data;
    choice.microbatch = 1;
    if (!judge.is_possible(choice)) {
      ++result.impossible;
      continue;
    }
    bool fits_somehow = false, is_behind = true;
    try {
      for (const int64_t microbatch : powers_of_2(std::min<int64_t>(own, 16))) {
        if (own % microbatch != 0) continue;
        choice.microbatch = microbatch;
        const double stages = static_cast<double>(choice.parallel.pipeline), times = static_cast<double>(own / microbatch);
        if (space.least_compute_s * (1 + (stages - 1) / times) > kFarBehind * best_s) continue;
        choice.recompute = Recompute::none;
        if (judge.least_s(choice) > kFarBehind * best_s) continue;
        is_behind = false;
        bool fits = false;
        for (const int64_t zero : choice.parallel.data* choice.parallel.context* choice.parallel.tensor_sequence > 1
                                      ? std::vector<int64_t>{1, 2, 3}
                                      : std::vector<int64_t>{0}) {
          choice.parallel.zero = zero;
          bool needs_nothing = false;
          for (const auto recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
            choice.recompute = recompute;
            if (!fits_at_least(choice)) continue;
            const auto memory = judge.memory(choice);
            if (memory.total_bytes() > room) continue;
            fits = true;
            needs_nothing = recompute == Recompute::none;
            result.fitting.push_back(judge.whole(choice, memory));
            best_s = std::min(best_s, result.fitting.back().step_s());
            break;  // a stronger one takes longer for memory that is not missing
          }
          if (needs_nothing) break;  // and so does more sharing
        }
        fits_somehow = fits_somehow || fits;
        if (!fits) break;  // larger microbatches need more
      }
    } catch (const base::ConfigError& refused) {
      // What only the program itself knows to refuse, when it is traced.
      ++result.impossible;
      base::log_info("{} is left out: {}", label(choice), refused.what());
      continue;
    }
    if (is_behind) ++result.behind;
    else if (!fits_somehow) ++result.too_large;
  }
  std::stable_sort(result.fitting.begin(), result.fitting.end(), [](const Judged& a, const Judged& b) { return a.step_s() < b.step_s(); });
  keep_pareto(result);
  if (!result.fitting.empty()) result.smallest.reset();
  if (!result.smallest) return result;
  try {
    result.smallest_bytes = judge.memory(*result.smallest).total_bytes();
  } catch (const base::ConfigError&) {  // one that is left out: the bound stands
  }
  return result;
}

std::string binding(const Judged& j, int64_t memory_bytes) {
  struct Part {
    const char* name;
    double seconds;
  };
  const Part parts[] = {{"compute", j.time.passes_s() - j.time.recompute_s},
                        {"recomputation", j.time.recompute_s},
                        {"the pipeline's bubble", j.time.waiting_s},
                        {"the optimizer", j.time.optimizer_s},
                        {"what lies between operations", j.time.between_s},
                        {"slower ranks", j.time.uneven_s},
                        {"communication in blocks", j.communication.blocks_s},
                        {"communication of gradients", j.communication.gradients_s},
                        {"communication of experts", j.communication.experts_s},
                        {"communication of stages", j.communication.stages_s},
                        {"communication of the update", j.communication.update_s}};
  std::string text = fmt::format("compute {:.0f} %", 100 * parts[0].seconds / j.step_s());
  const auto* largest =
      std::max_element(std::begin(parts) + 1, std::end(parts), [](const Part& a, const Part& b) { return a.seconds < b.seconds; });
  if (largest->seconds > 0.01 * j.step_s()) text += fmt::format(", {} {:.0f} %", largest->name, 100 * largest->seconds / j.step_s());
  const double share = static_cast<double>(j.memory.total_bytes()) / static_cast<double>(memory_bytes);
  if (share > 0.8 || j.choice.recompute != models::Recompute::none || j.choice.parallel.zero > 1)
    text += fmt::format("; memory {:.0f} % full", 100 * share);
  return text;
}

std::string label(const Choice& c) {
  const auto& p = c.parallel;
  std::string text;
  const auto add = [&](const char* name, int64_t size) {
    if (size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " x ", name, size);
  };
  add("pipeline", p.pipeline);
  add("data", p.data);
  add(p.context > 1 ? p.context_method.c_str() : "context", p.context);
  add("tensor", p.tensor);
  add("tensor_sequence", p.tensor_sequence);
  add("expert", p.expert);
  return fmt::format("{}, zero {}, {} at a time, recompute {}", text.empty() ? "1 device" : text, p.zero, c.microbatch,
                     name_of(c.recompute));
}

std::string as_toml(const Choice& c) {
  const auto& p = c.parallel;
  std::string text = "[parallel]\n";
  const auto add = [&](const char* name, int64_t value) {
    if (value > 1) text += fmt::format("{} = {}\n", name, value);
  };
  add("pipeline", p.pipeline);
  text += fmt::format("data = {}\n", p.data);
  add("context", p.context);
  if (p.context > 1) text += fmt::format("context_method = \"{}\"\n", p.context_method);
  if (p.context_order != mesh::ParallelConfig{}.context_order && p.context * p.tensor_sequence > 1)
    text += fmt::format("context_order = \"{}\"\n", p.context_order);
  add("tensor", p.tensor);
  add("tensor_sequence", p.tensor_sequence);
  add("expert", p.expert);
  text += fmt::format("zero = {}\n\n[train]\nmicrobatch_size = {}\nrecompute = \"{}\"\n", p.zero, c.microbatch, name_of(c.recompute));
  return text;
}

}  // namespace ingot::plan
