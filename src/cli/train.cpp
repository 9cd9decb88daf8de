#include <ATen/Parallel.h>

#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "cli/forecast.h"
#include "cli/verbs.h"
#include "cli/version.h"
#include "train/trainer.h"

namespace ingot::cli {
namespace {

namespace fs = std::filesystem;

train::RunConfig read_config(const TrainOptions& o) {
  train::RunConfig config;
  auto table = train::settings_of(config);
  table.load_toml(base::read_file(o.config, int64_t{16} << 20), o.config);
  for (const auto& setting : o.set) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) throw base::UsageError("--set {}: write key=value, for instance --set train.steps=200", setting);
    table.set(setting.substr(0, equals), setting.substr(equals + 1), "--set");
  }
  return config;
}

}  // namespace

int run_train(const Options& all) {
  const auto& o = all.train;
  if (o.settings_help) {
    train::RunConfig defaults;
    std::fputs(train::settings_of(defaults).help().c_str(), stdout);
    return 0;
  }
  if (o.config.empty()) throw base::UsageError("ingot train needs a configuration, for instance configs/zaya1-nano.toml");
  const auto config = read_config(o);
  train::apply_log_level(config.log);
  const fs::path run_dir = !o.run_dir.empty() ? fs::path(o.run_dir) : fs::path("runs") / fs::path(o.config).stem();
  if (config.train.threads > 0) at::set_num_threads(static_cast<int>(config.train.threads));
  if (o.dry_run) {
    std::fputs(dry_run(config, all.json).c_str(), stdout);
    return 0;
  }
  const auto forecast = forecast_of(config);
  const resilience::StopSignal stop;
  train::Trainer trainer(config, {run_dir, o.resume, kVersion}, forecast);
  trainer.run(stop);
  return 0;
}

}  // namespace ingot::cli
