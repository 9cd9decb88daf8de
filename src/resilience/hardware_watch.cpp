#include "resilience/hardware_watch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/process.h"
#include "base/process_stat.h"

namespace ingot::resilience {

using health::HardwareReading;

namespace {

constexpr double kMuchLoad = 0.15;  // of the cores

// Of the machine's cores those that neither this process nor the given ones use, since the last time.
class ForeignLoad {
 public:
  double cores_since(const std::vector<int64_t>& processes) {
    std::map<int64_t, double> now;
    double companions_s = 0;
    for (const auto process : processes) {
      now[process] = base::process_stat(process).value_or(base::ProcessStat()).cpu_s;
      companions_s += std::max(0.0, now[process] - before_[process]);
    }
    before_ = std::move(now);
    return std::exchange(load_, base::LoadWatch()).foreign_share(companions_s) * base::usable_cores();
  }

 private:
  base::LoadWatch load_;
  std::map<int64_t, double> before_;
};

}  // namespace

std::vector<health::HardwareFinding> HardwareNews::take(const HardwareReading& now, double now_s) {
  HardwareReading before, heard;  // of counters that may be spoken of
  for (const auto& counter : now.counters) {
    const Key key{counter.counted, counter.part};
    const auto [said, is_new] = said_.try_emplace(key, counter.value);
    if (is_new || now_s < until_[key]) continue;
    said->second = std::min(said->second, counter.value);  // a driver that was loaded anew counts from zero
    if (counter.value == said->second) continue;
    before.counters.push_back({counter.counted, counter.part, said->second});
    heard.counters.push_back(counter);
    said->second = counter.value;
    until_[key] = now_s + kQuiet_s;
  }
  return health::rises(before, heard);
}

struct HardwareWatch::State {
  Options options;
  std::function<void(const health::HardwareFinding&)> on_finding;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_ending = false;
  HardwareReading at_begin, gpus;
  double foreign_cores = 0;

  HardwareReading last() {
    auto now = health::read_system_counters(options.root);
    const std::lock_guard lock(mutex);
    now.append(gpus);
    now.counters.push_back({health::Counted::foreign_cores, "", foreign_cores});
    return now;
  }

  void watch() {
    const health::GpuCounters counters(options.gpu_library.c_str());
    HardwareNews news;
    ForeignLoad load;
    for (;;) {
      auto seen = counters.read();  // may take its time
      std::unique_lock call(calls_);
      if (is_asked_to_end()) return;
      const double cores = load.cores_since(options.processes());
      {
        const std::lock_guard lock(mutex);
        gpus = std::move(seen), foreign_cores = cores;
      }
      const auto now_s = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
      for (const auto& finding : news.take(last(), now_s)) on_finding(finding);
      call.unlock();
      std::unique_lock lock(mutex);
      changed.wait_for(lock, std::chrono::duration<double>(options.every_s), [this] { return is_ending; });
    }
  }

  bool is_asked_to_end() {
    const std::lock_guard lock(mutex);
    return is_ending;
  }

  void end() {
    {
      const std::scoped_lock both(calls_, mutex);  // whatever is being told has been told
      is_ending = true;
    }
    changed.notify_all();
  }

 private:
  std::mutex calls_;  // of what belongs to the owner
};

HardwareWatch::HardwareWatch(Options options, std::function<void(const health::HardwareFinding&)> on_finding)
    : state_(std::make_shared<State>()) {
  state_->options = std::move(options), state_->on_finding = std::move(on_finding);
  state_->at_begin = health::read_system_counters(state_->options.root);
  std::thread([state = state_] { state->watch(); }).detach();
}

HardwareWatch::~HardwareWatch() { state_->end(); }

void HardwareWatch::begin_attempt() {
  auto now = state_->last();
  const std::lock_guard lock(state_->mutex);
  state_->at_begin = std::move(now);
}

HardwareReading HardwareWatch::last() const { return state_->last(); }

std::string HardwareWatch::explain() const {
  const auto now = last();
  std::vector<std::string> risen;
  const std::lock_guard lock(state_->mutex);
  for (const auto& finding : health::rises(state_->at_begin, now)) risen.push_back(finding.what);
  return risen.empty() ? "" : fmt::format("this machine has counted meanwhile: {}", fmt::join(risen, ", "));
}

std::string HardwareWatch::foreign_load() const {
  const int cores = base::usable_cores();
  const std::lock_guard lock(state_->mutex);
  return state_->foreign_cores > kMuchLoad * cores ? fmt::format("others use {:.1f} of its {} cores", state_->foreign_cores, cores) : "";
}

}  // namespace ingot::resilience
