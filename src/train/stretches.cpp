#include "train/stretches.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "train/phases.h"

namespace ingot::train {
namespace {

bool is_of_a_phase(const std::string& name) {
  static const std::vector<std::string> known = {
      "train.microbatch_size",    "train.recompute",        "train.offload",     "train.gpu_graphs", "train.validation_every",
      "train.validation_batches", "train.evaluation_every", "optimizer.offload", "data.prefetch",    "checkpoint.every"};
  return name.starts_with("parallel.") || std::find(known.begin(), known.end(), name) != known.end();
}

RunConfig with(const RunConfig& config, const PhaseConfig& phase) {
  auto changed = config;
  auto table = settings_of(changed);
  for (const auto& setting : phase.set) {
    const size_t equals = setting.find('=');
    const auto name = setting.substr(0, equals);
    if (equals == std::string::npos) throw base::ConfigError("set of phase '{}': '{}' is not key=value", phase.name, setting);
    if (table.contains(name) && !is_of_a_phase(name))
      throw base::ConfigError("set of phase '{}': {} is of the whole run; ingot train --settings says what a phase may set", phase.name,
                              name);
    table.set(name, setting.substr(equals + 1), "set of phase '" + phase.name + "'");
  }
  return changed;
}

}  // namespace

std::vector<Stretch> stretches_of(const RunConfig& config) {
  constexpr int64_t kAtTheEndAlone = int64_t{1} << 40;
  const auto phases = lay_out_phases(config);
  std::vector<Stretch> stretches;
  std::string before;
  for (size_t i = 0; i < phases.size(); ++i) {
    auto own = config.train.phases.empty() ? config : with(config, config.train.phases[i]);
    const auto described = settings_of(own).dump_toml();
    if (stretches.empty() || described != before) {
      own.first_phase = i;
      stretches.push_back({std::move(own), phases[i].first_step, 0});
      before = described;
    }
    stretches.back().end_step = phases[i].end_step();
    stretches.back().config.end_phase = i + 1;
  }
  for (size_t i = 0; i + 1 < stretches.size(); ++i)
    if (auto& every = stretches[i].config.checkpoint.every; every == 0) every = kAtTheEndAlone;
  return stretches;
}

}  // namespace ingot::train
