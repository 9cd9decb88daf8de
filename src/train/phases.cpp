#include "train/phases.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "data/indexed_dataset.h"
#include "data/mixture.h"

namespace ingot::train {
namespace {

// A source of data.sources keeps its curriculum.
std::vector<data::DataSource> parse_sources(const std::vector<std::string>& texts, const std::string& phase,
                                            const std::vector<data::DataSource>& known) {
  std::vector<data::DataSource> sources;
  for (const auto& text : texts) {
    constexpr std::string_view kEpochs = "epochs ";
    const size_t space = text.find(' ');
    const auto number = base::parse_number(text.substr(0, space));
    if (space == std::string::npos || !number || *number <= 0)
      throw base::ConfigError(
          "phase '{}': the source '{}' is not of the form \"weight path\", for instance \"0.7 data/web\", or \"2 epochs data/web\"", phase,
          text);
    auto path = text.substr(space + 1);
    const bool is_epochs = path.starts_with(kEpochs);
    if (is_epochs) path.erase(0, kEpochs.size());
    const auto place = [](const std::string& of) { return data::dataset_prefix(of).lexically_normal(); };
    const auto same = std::find_if(known.begin(), known.end(), [&](const auto& source) { return place(source.path) == place(path); });
    auto source = same == known.end() ? data::DataSource() : *same;
    source.path = path, source.weight = is_epochs ? 1 : *number, source.epochs = is_epochs ? *number : 0;
    sources.push_back(std::move(source));
  }
  return sources;
}

// Epochs, and sizes where there is a temperature, become weights.
void weigh(Phase& phase) {
  auto& data = phase.data;
  const auto has_epochs = [](const data::DataSource& source) { return source.epochs > 0; };
  if (data.temperature == 0 && std::none_of(data.sources.begin(), data.sources.end(), has_epochs)) return;
  if (data.packing == "documents" || data.packing == "pairs")
    throw base::ConfigError(
        "phase '{}': data.temperature, and epochs of sources, count rows of data.seq_len tokens, and with data.packing = \"{}\" rows have "
        "as many as their documents: set the sources' weights instead",
        phase.name, data.packing);
  const double learned = data.validation.empty() ? 1 - data.validation_fraction : 1;
  const auto samples = static_cast<double>(phase.samples_before(phase.steps));
  double taken = 0, others = 0;
  for (auto& source : data.sources) {
    const double tokens = learned * static_cast<double>(data::tokens_in(source.path));
    if (has_epochs(source)) source.weight = source.epochs * tokens / static_cast<double>(data.seq_len) / samples;
    else if (data.temperature > 0) source.weight *= std::pow(tokens, 1 / data.temperature);
    (has_epochs(source) ? taken : others) += source.weight;
  }
  if (others == 0) {  // however long the phase is: it may be extended
    for (auto& source : data.sources) source.weight /= taken;
    return;
  }
  if (taken >= 1)
    throw base::ConfigError(
        "phase '{}' has {:.0f} samples, and the epochs that its sources ask for are {:.0f}: nothing is left for those without; fewer "
        "epochs or more steps would work",
        phase.name, samples, taken * samples);
  for (auto& source : data.sources)
    if (!has_epochs(source)) source.weight *= (1 - taken) / others;
}

// A source of the recipe: its path, and which of the entries of that path in one list.
using SourceId = std::pair<std::string, int64_t>;

std::vector<SourceId> ids_of(const std::vector<data::DataSource>& sources) {
  std::map<std::string, int64_t> entries;
  std::vector<SourceId> ids;
  for (const auto& source : sources) {
    const auto path = data::dataset_prefix(source.path).lexically_normal().string();
    ids.emplace_back(path, entries[path]++);
  }
  return ids;
}

// Units that samples of every length fill without a remainder, unless those would be far longer than any.
int64_t unit_of(const std::vector<int64_t>& lengths) {
  constexpr int64_t kMost = 16;
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  int64_t unit = 1;
  for (const int64_t length : lengths) unit = std::min(std::lcm(unit, length), kMost * longest);
  return unit;
}

struct Progress {
  int64_t number = 0;
  std::vector<data::DataSource::Drawn> drawn;
};

// Phases that go on with one another: each is told what those before it drew.
void go_on(std::vector<Phase*> phases, int64_t seed) {
  std::map<SourceId, std::vector<int64_t>> lengths;
  for (const auto* phase : phases)
    for (const auto& id : ids_of(phase->data.sources)) {
      auto& of_source = lengths[id];
      if (std::find(of_source.begin(), of_source.end(), phase->data.seq_len) == of_source.end()) of_source.push_back(phase->data.seq_len);
    }
  std::map<SourceId, Progress> progress;
  for (auto* phase : phases) {
    auto& sources = phase->data.sources;
    const auto ids = ids_of(sources);
    phase->data.seed = seed;
    std::vector<double> weights;
    for (size_t s = 0; s < sources.size(); ++s) {
      auto& known = progress.try_emplace(ids[s], Progress{static_cast<int64_t>(progress.size()), {}}).first->second;
      sources[s].number = known.number;
      sources[s].drawn = known.drawn;
      if (const auto& all = lengths.at(ids[s]); all.size() > 1) sources[s].unit_tokens = unit_of(all);
      weights.push_back(sources[s].weight);
    }
    if (std::none_of(weights.begin(), weights.end(), [](double weight) { return weight > 0; })) continue;  // the loader refuses it
    const auto counts = data::Mixture(weights).counts(phase->samples_before(phase->steps));
    for (size_t s = 0; s < sources.size(); ++s) progress.at(ids[s]).drawn.push_back({phase->data.seq_len, counts[s]});
  }
}

// Easy rows come first once in a run, and not again behind reset_dataloader.
void leave_out_curricula(const std::vector<Phase*>& phases) {
  for (auto* phase : phases)
    for (auto& source : phase->data.sources) source.curriculum = "none", source.curriculum_scores.clear();
}

// Fewest steps of so many tokens or more.
int64_t steps_for(const Phase& phase, int64_t tokens) {
  const int64_t samples = (tokens + phase.data.seq_len - 1) / phase.data.seq_len, ramp = phase.samples_before(phase.ramp_steps);
  if (samples >= ramp) return phase.ramp_steps + (samples - ramp + phase.batch_size - 1) / phase.batch_size;
  int64_t steps = 0;
  while (phase.samples_before(steps) < samples) ++steps;
  return steps;
}

}  // namespace

// The ramp has a stretch of steps for each size below batch_size, as long as they can be alike.
int64_t Phase::batch_at(int64_t step) const {
  if (step >= ramp_steps) return batch_size;
  const int64_t sizes = (batch_size - ramp_from) / ramp_increment;
  return ramp_from + step * sizes / ramp_steps * ramp_increment;
}

int64_t Phase::samples_before(int64_t step) const {
  if (ramp_steps == 0) return step * batch_size;
  const int64_t sizes = (batch_size - ramp_from) / ramp_increment, within = std::min(step, ramp_steps);
  int64_t samples = (step - within) * batch_size;
  for (int64_t size = 0; size < sizes; ++size) {
    const auto first_of = [&](int64_t n) { return std::min((n * ramp_steps + sizes - 1) / sizes, within); };
    samples += (first_of(size + 1) - first_of(size)) * (ramp_from + size * ramp_increment);
  }
  return samples;
}

static std::vector<Phase> lay_out(const RunConfig& config, bool looks_at_data) {
  auto described = config.train.phases;
  if (described.empty()) described.push_back({.steps = config.train.steps});
  std::vector<Phase> phases;
  int64_t next = 0;
  for (const auto& p : described) {
    Phase phase{.name = p.name, .first_step = next, .optimizer = config.optimizer, .data = config.data};
    phase.batch_size = p.batch_size > 0 ? p.batch_size : config.train.batch_size;
    if (p.seq_len > 0) phase.data.seq_len = p.seq_len;
    if (!p.sources.empty()) phase.data.sources = parse_sources(p.sources, p.name, config.data.sources);
    phase.rope_base = p.rope_base > 0 ? p.rope_base : config.model.rope_base;
    phase.peak_lr = p.lr > 0 ? p.lr : config.optimizer.lr;
    if (p.final_lr_fraction >= 0) phase.optimizer.final_lr_fraction = p.final_lr_fraction;
    if (p.warmup_steps >= 0) phase.optimizer.warmup_steps = p.warmup_steps;
    if (!p.schedule.empty()) phase.optimizer.schedule = p.schedule;
    phase.ramp_from = p.ramp_from, phase.ramp_increment = p.ramp_increment;
    phase.ramp_steps = p.ramp_from > 0 ? p.ramp_steps : 0;
    phase.resets_optimizer = p.reset_optimizer;
    phase.steps = p.steps > 0 ? p.steps : steps_for(phase, p.tokens);
    if (looks_at_data) weigh(phase);
    next += phase.steps;
    phases.push_back(std::move(phase));
  }
  for (size_t first = 0; first < phases.size();) {
    std::vector<Phase*> together = {&phases[first]};
    const bool is_reset = first > 0;
    const auto seed = config.data.seed + static_cast<int64_t>(first);
    for (++first; first < phases.size() && !described[first].reset_dataloader; ++first) together.push_back(&phases[first]);
    if (is_reset) leave_out_curricula(together);
    go_on(together, seed);
  }
  return phases;
}

std::vector<Phase> lay_out_phases(const RunConfig& config) { return lay_out(config, /*looks_at_data=*/false); }
std::vector<Phase> lay_out_phases_over_data(const RunConfig& config) { return lay_out(config, /*looks_at_data=*/true); }

const Phase& phase_at(const std::vector<Phase>& phases, int64_t step) {
  const auto found = std::find_if(phases.begin(), phases.end(), [&](const Phase& p) { return step < p.end_step(); });
  return found == phases.end() ? phases.back() : *found;
}

int64_t total_steps(const std::vector<Phase>& phases) { return phases.back().end_step(); }

}  // namespace ingot::train
