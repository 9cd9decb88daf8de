#include "sweep/definition.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/random.h"
#include "base/settings.h"
#include "base/text.h"
#include "data/loader.h"
#include "models/model.h"
#include "train/config.h"
#include "train/inputs.h"
#include "train/phases.h"

namespace ingot::sweep {
namespace {

using base::ConfigError;

constexpr size_t kMostTrials = 10'000;

void declare_swept(base::SettingsTable& table, SweptSetting& s) {
  table.add("name", s.name, "the setting, as of ingot train --settings");
  table.add("values", s.values, "what is tried");
  table.add("low", s.low, base::NumberRange{}, "instead of values: the smallest");
  table.add("high", s.high, base::NumberRange{}, "the largest");
  table.add("points", s.points, {0, 1000}, "of a grid over low to high, ends included");
  table.add("scale", s.scale, {"log", "linear"}, "how points and random values lie between low and high");
  table.add("integer", s.is_integer, "round to whole numbers");
}

base::SettingsTable table_of(Definition& d) {
  base::SettingsTable table;
  table.add("config", d.config, "configuration of a run (TOML)");
  table.add("set", d.set, "key=value over it, of every run");
  table.add("search", d.search, {"grid", "random"}, "grid: every combination; random: of each setting a value at random");
  table.add("runs", d.runs, {1, static_cast<int64_t>(kMostTrials)}, "of a random search");
  table.add("seed", d.seed, base::at_least(0), "of a random search");
  table.add("metric", d.metric, {"validation_loss", "loss"}, "what should be small; loss: the mean over the last steps");
  table.add("average", d.average, base::at_least(1), "steps of that mean");
  table.add("at_once", d.at_once, {0, 4096}, "runs side by side; 0 = as many as there are cores for");
  table.add("threads", d.threads, {0, 4096}, "of a rank; 0 = one, or the cores shared out among the runs that at_once names");
  table.add("ranks", d.ranks, {1, 4096}, "of a run, which ingot launch starts when there are several");
  table.add("rungs", d.rungs, "successive halving: steps after which only the best go on; empty = every run goes to its end");
  table.add("keep", d.keep, {0.01, 0.99}, "the share that goes on");
  table.add("keep_checkpoints", d.keep_checkpoints, "runs save at their end, and what they saved stays");
  table.add_list("settings", d.settings, declare_swept, "what is tried");
  return table;
}

std::string text_of(double value, const SweptSetting& s) {
  if (s.is_integer) return std::to_string(static_cast<int64_t>(std::llround(value)));
  auto text = fmt::format("{:.4g}", value);
  return text;
}

double between(const SweptSetting& s, double share) {
  if (s.scale == "log") return s.low * std::pow(s.high / s.low, share);
  return s.low + (s.high - s.low) * share;
}

void check_swept(const Definition& d, const SweptSetting& s) {
  if (s.name.empty()) throw ConfigError("settings.name is empty: name what is tried, such as optimizer.lr");
  const bool has_range = s.low != 0 || s.high != 0;
  if (s.values.empty() == !has_range) throw ConfigError("settings '{}' needs either values, or low and high", s.name);
  if (!has_range) return;
  if (!(s.low < s.high)) throw ConfigError("settings '{}': low = {:g} is not below high = {:g}", s.name, s.low, s.high);
  if (s.scale == "log" && s.low <= 0)
    throw ConfigError("settings '{}': low = {:g} has no logarithm; set scale = \"linear\"", s.name, s.low);
  if (d.search == "grid" && s.points < 2) throw ConfigError("settings '{}': a grid over low to high needs points, 2 or more", s.name);
}

std::vector<std::string> grid_values(const SweptSetting& s) {
  if (!s.values.empty()) return s.values;
  std::vector<std::string> values;
  for (int64_t i = 0; i < s.points; ++i) {
    auto text = text_of(between(s, static_cast<double>(i) / static_cast<double>(s.points - 1)), s);
    if (values.empty() || values.back() != text) values.push_back(std::move(text));
  }
  return values;
}

}  // namespace

Definition read_definition(const std::filesystem::path& file) {
  Definition d;
  auto table = table_of(d);
  const auto text = base::read_file(file, int64_t{16} << 20);
  for (const auto* group : {"\n[model]", "\n[train]"})
    if (("\n" + text).find(group) != std::string::npos)
      throw base::ConfigError("{} is a configuration of one run; a sweep names it: config = \"{}\" (configs/sweeps has examples)",
                              file.string(), file.filename().string());
  table.load_toml(text, file.string());
  if (d.config.empty()) throw ConfigError("{}: config is empty; name the configuration of a run", file.string());
  if (d.settings.empty()) throw ConfigError("{}: there is nothing to try; add [[settings]] with a name and values", file.string());
  std::set<std::string> names;
  for (const auto& s : d.settings) {
    check_swept(d, s);
    if (!names.insert(s.name).second) throw ConfigError("settings '{}' is there twice", s.name);
  }
  d.toml = table.dump_toml();
  return d;
}

std::vector<Trial> trials_of(const Definition& d) {
  std::vector<std::vector<std::string>> all(1);
  if (d.search == "grid") {
    for (const auto& s : d.settings) {
      std::vector<std::vector<std::string>> longer;
      for (const auto& values : all)
        for (const auto& value : grid_values(s)) {
          longer.push_back(values);
          longer.back().push_back(value);
          if (longer.size() > kMostTrials) throw ConfigError("the grid has more than {} runs", kMostTrials);
        }
      all = std::move(longer);
    }
  } else {
    all.assign(static_cast<size_t>(d.runs), {});
    for (const auto& s : d.settings) {
      const auto key = base::stream_key(static_cast<uint64_t>(d.seed), s.name);
      for (size_t run = 0; run < all.size(); ++run) {
        const double share = base::uniform_at(key, run);
        all[run].push_back(s.values.empty() ? text_of(between(s, share), s)
                                            : s.values[static_cast<size_t>(share * static_cast<double>(s.values.size()))]);
      }
    }
  }
  const size_t width = std::max<size_t>(3, std::to_string(all.size() - 1).size());
  std::vector<Trial> trials;
  for (size_t i = 0; i < all.size(); ++i) trials.push_back({fmt::format("{:0{}}", i, width), std::move(all[i])});
  return trials;
}

std::vector<std::string> settings_of(const Definition& d, const Trial& trial) {
  auto set = d.set;
  for (size_t i = 0; i < d.settings.size(); ++i) set.push_back(d.settings[i].name + "=" + trial.values[i]);
  return set;
}

int64_t check_trials(const Definition& d, const std::vector<Trial>& trials) {
  int64_t steps = 0;
  for (const auto& trial : trials) {
    const auto config = train::read_config(d.config, settings_of(d, trial));
    train::check(config);
    models::create_model(config.model);
    if (&trial == &trials.front()) train::check_files(config);
    const int64_t own = train::total_steps(train::lay_out_phases(config));
    if (steps != 0 && own != steps && !d.rungs.empty())
      throw ConfigError("run {} has {} steps and run {} has {}: successive halving compares runs of one length", trials.front().name, steps,
                        trial.name, own);
    steps = std::max(steps, own);
    if (d.metric == "validation_loss" && (config.train.validation_every == 0 || !data::has_validation(config.data)))
      throw ConfigError(
          "metric = \"validation_loss\", and {} does not validate: set train.validation_every and data.validation_fraction (or "
          "data.validation), or metric = \"loss\"",
          d.config);
  }
  int64_t before = 0;
  for (const auto& rung : d.rungs) {
    const auto step = base::parse_integer(rung);
    if (!step || *step <= before || *step >= steps)
      throw ConfigError("rungs has '{}': they are steps that ascend, below the {} of a run", rung, steps);
    before = *step;
  }
  return steps;
}

}  // namespace ingot::sweep
