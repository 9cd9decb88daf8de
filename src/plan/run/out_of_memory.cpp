#include "plan/run/out_of_memory.h"

#include <algorithm>

#include "base/text.h"
#include "device/device.h"
#include "plan/trace/step_trace.h"
#include "train/check_layout.h"

namespace ingot::plan {
namespace {

using base::format_bytes;

constexpr size_t kNames = 8, kChoices = 3;

// The phase of the plan that needs most memory.
struct Fullest {
  std::vector<train::Phase> phases;
  size_t phase = 0;
  PhasePlan plan;

  Fullest(const train::RunConfig& config, PhasePlanner& planner) : phases(train::lay_out_phases(config)) {
    for (size_t i = 0; i < phases.size(); ++i) {
      auto one = planner.plan(config, phases[i]);
      if (i == 0 || one.plan.memory.total_bytes() > plan.plan.memory.total_bytes()) phase = i, plan = std::move(one);
    }
  }
  int64_t bytes() const { return plan.plan.memory.total_bytes(); }
};

struct Cheaper {
  int64_t microbatch;
  std::string recompute, offload;
  int64_t bytes;
  double step_s;  // 0: not known
};

// Of the phase, by microbatches and by what is recomputed: those that need less than the configuration, the smallest microbatches first, up
// to where they fit no more. A pass over a thousand times the device's memory is long to trace.
std::vector<Cheaper> cheaper_than(const Fullest& present, train::RunConfig config, PhasePlanner& planner) {
  const auto& shape = present.plan.shape;
  std::vector<int64_t> microbatches;
  for (int64_t size = shape.sequences_at_once(); size > 0; size /= 2)
    if (shape.batch % size == 0) microbatches.push_back(size);
  std::reverse(microbatches.begin(), microbatches.end());
  std::vector<Cheaper> all;
  int64_t least_before = INT64_MAX;
  for (const int64_t microbatch : microbatches) {
    int64_t least = INT64_MAX;
    for (const auto& [recompute, offload] : std::vector<std::pair<std::string, std::string>>{
             {"none", "none"}, {"selective", "none"}, {"full", "none"}, {"full", "activations"}}) {
      config.train.microbatch_size = microbatch;
      config.train.recompute = recompute;
      config.train.offload = offload;
      try {
        train::check_layout(config, planner.mesh());
        train::check_device(config, device::device_named(config.train.device));
      } catch (const base::ConfigError&) {
        continue;  // another phase, or a pipeline, cannot have it
      }
      const auto plan = planner.plan(config, present.phases[present.phase]).plan;
      const int64_t bytes = plan.memory.total_bytes();
      if (bytes < present.bytes()) all.push_back({microbatch, recompute, offload, bytes, plan.has_time() ? plan.step_s() : 0});
      least = std::min(least, bytes);
    }
    if (least > present.plan.plan.device_memory_bytes && least > least_before) break;
    least_before = least;
  }
  return all;
}

std::string table_of(const std::vector<Cheaper>& choices, const Fullest& present) {
  std::string text;
  for (const auto& c : choices) {
    text += fmt::format("  {:<76}{:>12}",
                        fmt::format("train.microbatch_size = {}, train.recompute = \"{}\"{}", c.microbatch, c.recompute,
                                    c.offload == "none" ? "" : ", train.offload = \"" + c.offload + "\""),
                        format_bytes(c.bytes));
    if (c.step_s > 0) text += fmt::format("   a step {:+.0f} %", 100 * (c.step_s / present.plan.plan.step_s() - 1));
    text += '\n';
  }
  return text;
}

std::string needs_less(const Fullest& present, const train::RunConfig& config, PhasePlanner& planner) {
  const auto all = cheaper_than(present, config, planner);
  // What was planned to fit and did not leave room for: a tenth of what a step works with has to go.
  const auto& plan = present.plan.plan;
  const bool was_to_fit = present.bytes() <= plan.device_memory_bytes;
  const int64_t room = was_to_fit ? present.bytes() - plan.memory.working_bytes() / 10 : plan.device_memory_bytes;
  std::vector<Cheaper> fitting;
  std::copy_if(all.begin(), all.end(), std::back_inserter(fitting), [&](const auto& c) { return c.bytes <= room; });
  // Where times are not known: the largest microbatches first, and the least that is computed twice.
  std::stable_sort(fitting.begin(), fitting.end(), [](const auto& a, const auto& b) { return a.microbatch > b.microbatch; });
  std::stable_sort(fitting.begin(), fitting.end(), [](const auto& a, const auto& b) { return a.step_s < b.step_s; });
  if (fitting.size() > kChoices) fitting.resize(kChoices);
  if (!fitting.empty()) return "what would need less, as planned:\n" + table_of(fitting, present);
  std::string text;
  if (!all.empty()) {
    const auto least = std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    text = "what would need least of the same layout, and does not fit either:\n" + table_of({*least}, present);
  }
  return text + fmt::format(
                    "{} are weights, gradients, masters and moments: parallel.zero = 1 to 3, parallel.tensor, parallel.pipeline and "
                    "parallel.expert share them out over more ranks (ingot plan search)\n",
                    format_bytes(plan.memory.state_bytes()));
}

std::string held_by_name(const Fullest& present, const train::RunConfig& config, const mesh::Mesh& mesh) {
  const bool is_cpu = device::is_cpu(device::device_named(config.train.device));
  const auto step = trace_step({.config = config,
                                .phase = static_cast<int64_t>(present.phase),
                                .rank = mesh.rank(),
                                .world = mesh.world(),
                                .target = is_cpu ? device::Target::cpu : device::Target::gpu});
  std::vector<std::pair<std::string, int64_t>> names;
  for (const auto& entry : step.peak_by_name()) names.emplace_back(entry);
  std::stable_sort(names.begin(), names.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text = fmt::format("a step{} is planned to take {}, and there are {}. Tensors at its peak, {}:\n",
                                 present.phases.size() > 1 ? " of phase '" + present.plan.name + "'" : "", format_bytes(present.bytes()),
                                 format_bytes(present.plan.plan.device_memory_bytes), format_bytes(step.trace.peak_bytes));
  int64_t rest = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i < kNames) text += fmt::format("  {:<60}{:>12}\n", names[i].first, format_bytes(names[i].second));
    else rest += names[i].second;
  }
  if (rest > 0) text += fmt::format("  {:<60}{:>12}\n", fmt::format("{} more", names.size() - kNames), format_bytes(rest));
  return text;
}

}  // namespace

std::string settings_that_need_less(const train::RunConfig& config, PhasePlanner& planner) {
  return needs_less(Fullest(config, planner), config, planner);
}

std::string explain_out_of_memory(const train::RunConfig& config, PhasePlanner& planner) {
  const Fullest present(config, planner);
  std::string text = held_by_name(present, config, planner.mesh());
  if (present.bytes() <= present.plan.plan.device_memory_bytes)
    text +=
        "it should fit: other programs on the device, experts that get more tokens than others, or pieces between blocks took the rest\n";
  return text + needs_less(present, config, planner);
}

}  // namespace ingot::plan
