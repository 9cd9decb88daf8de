#include "train/metrics/config.h"

#include "base/log.h"
#include "train/metrics/prometheus.h"

namespace ingot::train {

void declare_settings(base::SettingsTable& table, LogConfig& config) {
  table.add("log.every", config.every, base::at_least(1), "steps between two step lines on the terminal; metrics.jsonl has every step");
  table.add("log.tensorboard", config.tensorboard, "write a TensorBoard event file into the run directory");
  table.add("log.prometheus", config.prometheus, "HOST:PORT on which rank 0 serves /metrics, as in 127.0.0.1:9400; empty = off");
  table.add("log.level", config.level, {"debug", "info", "warning", "error"}, "the least serious message that is logged");
}

void check(const LogConfig& config) {
  if (!config.prometheus.empty()) parse_listen_address(config.prometheus);
}

void apply_log_level(const LogConfig& config) {
  using base::LogLevel;
  base::set_log_level(config.level == "debug"     ? LogLevel::debug
                      : config.level == "warning" ? LogLevel::warning
                      : config.level == "error"   ? LogLevel::error
                                                  : LogLevel::info);
}

}  // namespace ingot::train
