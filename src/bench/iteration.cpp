#include "bench/iteration.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "bench/stopwatch.h"
#include "device/device.h"
#include "train/trainer.h"

namespace ingot::bench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmUpSteps = 2;

// The run directory of a run that nobody wants to keep.
class PassingRun {
 public:
  PassingRun() {
    const auto parent = base::temporary_folder();
    std::string path = (parent / "ingot-bench-iteration-XXXXXX").string();
    if (!::mkdtemp(path.data()))
      throw base::FileError("cannot make a folder in {}: {}; TMPDIR names another place", parent.string(), std::strerror(errno));
    path_ = path;
  }
  PassingRun(const PassingRun&) = delete;
  ~PassingRun() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  fs::path path() const { return path_ / "run"; }

 private:
  fs::path path_;
};

// Every second step after the first ones is watched.
class Alternating : public train::StepWatch {
 public:
  Alternating(IterationReport& report, int64_t steps, void (*synchronise)(), const std::function<void(int64_t, int64_t)>& progress)
      : report_(report), all_(kWarmUpSteps + 2 * steps), watch_(synchronise), synchronise_(synchronise), progress_(progress) {}

  void before_step() override {
    progress_(done_, all_);
    if (synchronise_) synchronise_();
    start_ = Clock::now();
    if (is_watched()) watch_.start();
  }
  void after_step() override {
    if (synchronise_) synchronise_();
    if (is_watched()) {
      const auto times = watch_.stop();
      report_.watched_ms.push_back(times.wall_s * 1e3);
      report_.times += times;
      ++report_.steps;
    } else if (done_ >= kWarmUpSteps) {
      report_.plain_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start_).count());
    }
    ++done_;
  }

 private:
  bool is_watched() const { return done_ >= kWarmUpSteps && (done_ - kWarmUpSteps) % 2 == 1; }

  IterationReport& report_;
  int64_t all_, done_ = 0;
  WorkWatch watch_;
  void (*synchronise_)();
  const std::function<void(int64_t, int64_t)>& progress_;
  Clock::time_point start_;
};

// Nothing but steps.
train::RunConfig only_steps(train::RunConfig config, int64_t steps) {
  const int64_t all = kWarmUpSteps + 2 * steps;
  config.train.steps = all;
  if (!config.train.phases.empty()) {
    config.train.phases.resize(1);
    config.train.phases[0].steps = all;
    config.train.phases[0].tokens = 0;
  }
  config.train.validation_every = config.train.patience = 0;
  config.checkpoint.every = 0;
  config.checkpoint.memory_every = 0;
  config.log.tensorboard = false;
  config.log.prometheus.clear();
  config.log.every = all;
  return config;
}

void gather_ranks(IterationReport& report, comm::Group& everyone) {
  nlohmann::json own = nlohmann::json::array();
  for (const auto kind : all_work_kinds()) own.push_back(report.steps > 0 ? report.ms(kind) : 0);
  report.ranks = everyone.size();
  report.least_ms = report.most_ms = own.get<std::vector<double>>();
  if (everyone.size() == 1) return;
  for (const auto& text : comm::gather_texts(everyone, own.dump(), 0)) {
    const auto times = nlohmann::json::parse(text).get<std::vector<double>>();
    for (size_t i = 0; i < times.size(); ++i) {
      report.least_ms[i] = std::min(report.least_ms[i], times[i]);
      report.most_ms[i] = std::max(report.most_ms[i], times[i]);
    }
  }
}

}  // namespace

double IterationReport::overhead() const {
  if (watched_ms.empty() || plain_ms.empty()) return 0;
  return median(watched_ms) / median(plain_ms) - 1;
}

IterationReport measure_iteration(train::RunConfig config, int64_t steps, mesh::Groups& groups, const resilience::StopSignal& stop,
                                  const std::function<void(int64_t, int64_t)>& progress) {
  config = only_steps(std::move(config), steps);
  const auto device = device::device_named(config.train.device);
  IterationReport report;
  const PassingRun run;
  Alternating watch(report, steps, device.is_cuda() ? +[] { wait_for(at::Device(at::kCUDA)); } : nullptr, progress);
  train::Trainer trainer(config, {.run_dir = run.path(), .resume = "never", .version = "", .watch = &watch}, {}, groups);
  trainer.run(stop);
  report.tokens_per_step = train::lay_out_phases(config).front().tokens_per_step();
  gather_ranks(report, groups.world().everyone());
  return report;
}

}  // namespace ingot::bench
