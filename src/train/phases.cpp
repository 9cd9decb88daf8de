#include "train/phases.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace ingot::train {
namespace {

std::vector<data::DataSource> parse_sources(const std::vector<std::string>& texts, const std::string& phase) {
  std::vector<data::DataSource> sources;
  for (const auto& text : texts) {
    const size_t space = text.find(' ');
    const auto weight = base::parse_number(text.substr(0, space));
    if (space == std::string::npos || !weight || *weight <= 0)
      throw base::ConfigError("phase '{}': the source '{}' is not of the form \"weight path\", for instance \"0.7 data/web\"", phase, text);
    sources.push_back({text.substr(space + 1), *weight});
  }
  return sources;
}

}  // namespace

std::vector<Phase> lay_out_phases(const RunConfig& config) {
  auto described = config.train.phases;
  if (described.empty()) described.push_back({.steps = config.train.steps});
  std::vector<Phase> phases;
  int64_t next = 0;
  for (const auto& p : described) {
    Phase phase{.name = p.name, .first_step = next, .optimizer = config.optimizer, .data = config.data};
    phase.batch_size = p.batch_size > 0 ? p.batch_size : config.train.batch_size;
    if (p.seq_len > 0) phase.data.seq_len = p.seq_len;
    if (!p.sources.empty()) phase.data.sources = parse_sources(p.sources, p.name);
    phase.data.seed = config.data.seed + static_cast<int64_t>(phases.size());  // a later phase goes through the data in another order
    phase.rope_base = p.rope_base > 0 ? p.rope_base : config.model.rope_base;
    phase.peak_lr = p.lr > 0 ? p.lr : config.optimizer.lr;
    if (p.final_lr_fraction >= 0) phase.optimizer.final_lr_fraction = p.final_lr_fraction;
    if (p.warmup_steps >= 0) phase.optimizer.warmup_steps = p.warmup_steps;
    if (!p.schedule.empty()) phase.optimizer.schedule = p.schedule;
    const int64_t per_step = phase.tokens_per_step();
    phase.steps = p.steps > 0 ? p.steps : (p.tokens + per_step - 1) / per_step;
    next += phase.steps;
    phases.push_back(std::move(phase));
  }
  return phases;
}

const Phase& phase_at(const std::vector<Phase>& phases, int64_t step) {
  const auto found = std::find_if(phases.begin(), phases.end(), [&](const Phase& p) { return step < p.end_step(); });
  return found == phases.end() ? phases.back() : *found;
}

int64_t total_steps(const std::vector<Phase>& phases) { return phases.back().end_step(); }

}  // namespace ingot::train
