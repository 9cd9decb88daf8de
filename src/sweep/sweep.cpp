#include "sweep/sweep.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <deque>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/child_process.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/system_call.h"
#include "base/text.h"
#include "report/run/metrics_reader.h"
#include "report/sweep/page.h"
#include "resilience/stop_signal.h"

namespace ingot::sweep {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using report::TrialResult, report::TrialStatus;

constexpr auto kTick = std::chrono::milliseconds(20);
constexpr double kPageEvery = 5;            // seconds
constexpr int kUsageStatus = 2;             // what every run would end with
constexpr int64_t kLastOutputBytes = 4096;  // of a run that failed

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double children_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Job {
  const Trial* trial = nullptr;
  int64_t rung = 0;
};

struct Running {
  Job job;
  pid_t process = 0;
  Clock::time_point start;
};

class Sweep {
 public:
  Sweep(const Definition& definition, const std::vector<Trial>& trials, int64_t steps, fs::path folder)
      : definition_(definition), trials_(trials), folder_(std::move(folder)) {
    const auto cores = static_cast<int64_t>(base::usable_cores());
    threads_ = definition.threads;
    at_once_ = definition.at_once;
    if (at_once_ == 0) at_once_ = std::max<int64_t>(1, cores / (definition.ranks * std::max<int64_t>(1, threads_)));
    if (threads_ == 0) threads_ = std::max<int64_t>(1, cores / (at_once_ * definition.ranks));
    results_.definition = definition.toml;
    results_.metric = definition.metric;
    for (const auto& s : definition.settings) results_.settings.push_back(s.name);
    for (const auto& rung : definition.rungs) results_.rungs.push_back(*base::parse_integer(rung));
    results_.rungs.push_back(steps);
    for (const auto& trial : trials) results_.trials.emplace_back(trial.name, trial.values);
  }
  ~Sweep() {
    for (const auto& running : running_) {
      kill(-running.process, SIGKILL);
      base::uninterrupted([&] { return waitpid(running.process, nullptr, 0); });
    }
  }
  Sweep(const Sweep&) = delete;

  int64_t at_once() const { return at_once_; }
  int64_t threads() const { return threads_; }
  const report::SweepResults& results() const { return results_; }

  /// What an earlier call found; throws ConfigError where that was another sweep.
  void resume() {
    auto known = report::read_sweep(folder_);
    if (!known) {
      base::append_line(folder_ / "sweep.jsonl", report::first_line(results_));
      return;
    }
    if (known->definition != results_.definition || known->trials != results_.trials || known->rungs != results_.rungs)
      throw base::ConfigError("{} holds another sweep, or this one with other settings; choose another --dir, or delete it",
                              folder_.string());
    results_.results = std::move(known->results);
    if (!results_.results.empty()) base::log_info("going on with {}: {} results are known", folder_.string(), results_.results.size());
  }

  /// Returns whether all runs came to an end.
  bool run(const resilience::StopSignal& stop) {
    const auto start = Clock::now();
    const double cpu_before = children_cpu_seconds();
    int64_t jobs = 0, known = 0;
    std::vector<const Trial*> going;
    for (const auto& trial : trials_) going.push_back(&trial);
    for (size_t rung = 0, count = going.size(); rung < results_.rungs.size(); ++rung, count = survivors(count))
      jobs += static_cast<int64_t>(count);
    base::ProgressBar bar("runs", jobs, base::ProgressUnit::count);
    for (size_t rung = 0; rung < results_.rungs.size(); ++rung) {
      if (rung > 0) going = best(going, static_cast<int64_t>(rung) - 1);
      std::deque<Job> queue;
      for (const auto* trial : going) {
        const auto* result = results_.at(trial->name, static_cast<int64_t>(rung));
        if (result && result->status != TrialStatus::failed) ++known;
        else queue.push_back({trial, static_cast<int64_t>(rung)});
      }
      while (!queue.empty() || !running_.empty()) {
        if (stop.received() != 0) {
          end_all(stop.received());
          bar.finish("stopped");
          return false;
        }
        while (!queue.empty() && static_cast<int64_t>(running_.size()) < at_once_) {
          running_.push_back(start_job(queue.front()));
          queue.pop_front();
        }
        known += reap();
        if (running_.size() == static_cast<size_t>(at_once_) || queue.empty()) show_page();  // no core waits for it
        bar.update(known, remark());
        std::this_thread::sleep_for(kTick);
      }
      if (rung + 1 < results_.rungs.size()) drop_checkpoints(going, best(going, static_cast<int64_t>(rung)));
    }
    if (!definition_.keep_checkpoints) drop_checkpoints(going, {});
    bar.finish(remark());
    const double wall = seconds_since(start), cpu = children_cpu_seconds() - cpu_before;
    const auto cores = static_cast<double>(std::min<int64_t>(base::usable_cores(), at_once_ * threads_ * definition_.ranks));
    if (cpu > 0)
      base::log_info("the runs used {:.1f} % of {:g} cores for {}", 100 * cpu / (wall * cores), cores, base::format_duration(wall));
    return true;
  }

 private:
  size_t survivors(size_t count) const {
    return std::max<size_t>(1, static_cast<size_t>(std::ceil(definition_.keep * static_cast<double>(count))));
  }

  // Those that go on behind a rung, in the order of the trials.
  std::vector<const Trial*> best(const std::vector<const Trial*>& trials, int64_t rung) const {
    std::vector<std::pair<double, const Trial*>> ranked;
    for (const auto* trial : trials) {
      const auto* result = results_.at(trial->name, rung);
      if (result && result->status == TrialStatus::done && std::isfinite(result->metric)) ranked.emplace_back(result->metric, trial);
    }
    std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    ranked.resize(std::min(ranked.size(), survivors(trials.size())));
    std::vector<const Trial*> chosen;
    for (const auto* trial : trials)
      if (std::any_of(ranked.begin(), ranked.end(), [&](const auto& r) { return r.second == trial; })) chosen.push_back(trial);
    return chosen;
  }

  fs::path run_dir(const Trial& trial) const { return folder_ / "runs" / trial.name; }

  std::vector<std::string> command_of(const Job& job) const {
    std::vector<std::string> command;
    const auto program = base::own_program();
    if (definition_.ranks > 1) command = {program, "launch", "-n", std::to_string(definition_.ranks), "--"};
    command.insert(command.end(), {program, "train", definition_.config, "--run-dir", run_dir(*job.trial).string(), "--no-forecast"});
    const auto set = [&](const std::string& setting) { command.insert(command.end(), {"--set", setting}); };
    set(fmt::format("train.threads={}", threads_));
    for (const auto& setting : settings_of(definition_, *job.trial)) set(setting);
    const bool is_last = job.rung + 1 == static_cast<int64_t>(results_.rungs.size());
    if (!is_last) command.insert(command.end(), {"--stop-after", std::to_string(results_.rungs[static_cast<size_t>(job.rung)])});
    // A run that stops at a rung saves there, as one does at its end; in between nothing is saved, and without rungs nothing at all.
    const bool saves = results_.rungs.size() > 1 || definition_.keep_checkpoints;
    set(fmt::format("checkpoint.every={}", saves ? int64_t{1} << 40 : int64_t{0}));
    return command;
  }

  Running start_job(const Job& job) const {
    const auto dir = run_dir(*job.trial);
    if (results_.rungs.size() == 1 && !definition_.keep_checkpoints)
      fs::remove_all(dir);  // of a run that was cut off: it has no checkpoint
    base::make_directories(dir);
    const int output = open((dir / "output.txt").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (output < 0) throw base::FileError("cannot write {}: {}", (dir / "output.txt").string(), std::strerror(errno));
    // As ingot launch: ranks share no threads that nobody asked for.
    const std::vector<std::pair<std::string, std::string>> environment = {{"OMP_NUM_THREADS", std::to_string(threads_)}};
    const auto process = base::start_process(command_of(job), environment, {.out = output, .err = output});
    close(output);
    return {job, process, Clock::now()};
  }

  // Returns how many results came.
  int64_t reap() {
    int64_t came = 0;
    for (auto running = running_.begin(); running != running_.end();) {
      int status = 0;
      if (waitpid(running->process, &status, WNOHANG) != running->process) {
        ++running;
        continue;
      }
      const auto result = result_of(*running, status);
      running = running_.erase(running);
      base::append_line(folder_ / "sweep.jsonl", report::line_of(result));
      results_.results.push_back(result);
      ++came;
      if (result.status == TrialStatus::failed && WIFEXITED(status) && WEXITSTATUS(status) == kUsageStatus)
        throw base::ConfigError("run {} does not begin, and others would not: {}", result.trial, result.message);
      if (result.status == TrialStatus::failed) base::log_error("run {} failed: {}", result.trial, result.message);
    }
    return came;
  }

  void show_page() {
    if (results_.results.size() == shown_ || seconds_since(shown_at_) < kPageEvery) return;
    report::write_sweep_page(results_, folder_);
    shown_ = results_.results.size(), shown_at_ = Clock::now();
  }

  TrialResult result_of(const Running& running, int status) const {
    TrialResult result{
        .trial = running.job.trial->name, .rung = running.job.rung, .metric = NAN, .seconds = seconds_since(running.start), .message = {}};
    const auto dir = run_dir(*running.job.trial);
    std::error_code none;
    report::Metrics metrics;
    if (fs::exists(dir / "metrics.jsonl", none)) metrics = report::read_metrics(base::read_file(dir / "metrics.jsonl"));
    if (!metrics.step.empty()) result.step = static_cast<int64_t>(metrics.step.back());
    result.metric = metric_of(metrics);
    const bool has_ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (has_ended && std::isfinite(result.metric)) return result;
    const auto& losses = metrics[report::Field::loss];
    const bool is_finite = losses.empty() || std::isfinite(losses.back());
    result.status = !is_finite || metrics.lines.skipped > 0 ? TrialStatus::diverged : TrialStatus::failed;
    result.message = WIFSIGNALED(status) ? fmt::format("ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)))
                     : has_ended         ? "it gave no " + definition_.metric
                                         : last_line(dir / "output.txt");
    return result;
  }

  double metric_of(const report::Metrics& metrics) const {
    if (definition_.metric == "validation_loss") {
      const auto& values = metrics[report::Field::validation_loss];
      return values.empty() ? NAN : values.back();  // both a rung and a run end with one
    }
    const auto& losses = metrics[report::Field::loss];
    const auto count = std::min<size_t>(losses.size(), static_cast<size_t>(definition_.average));
    double sum = 0;
    for (size_t i = losses.size() - count; i < losses.size(); ++i) sum += losses[i];
    return count > 0 ? sum / static_cast<double>(count) : NAN;
  }

  static std::string last_line(const fs::path& output) {
    auto lines = base::split(base::read_last_lines(output, kLastOutputBytes), '\n');
    while (!lines.empty() && lines.back().empty()) lines.pop_back();
    return lines.empty() ? "it printed nothing" : lines.back();
  }

  std::string remark() const {
    const auto ranking = results_.ranking();
    if (ranking.empty()) return "";
    const auto& best = *ranking.front();
    return fmt::format("best {:.4f} ({})", best.metric, best.trial);
  }

  void end_all(int signal) {
    for (const auto& running : running_) kill(-running.process, signal);
    for (const auto& running : running_) base::uninterrupted([&] { return waitpid(running.process, nullptr, 0); });
    running_.clear();
  }

  // Of runs that do not go on.
  void drop_checkpoints(const std::vector<const Trial*>& trials, const std::vector<const Trial*>& but) const {
    for (const auto* trial : trials)
      if (std::find(but.begin(), but.end(), trial) == but.end()) fs::remove_all(run_dir(*trial) / "checkpoints");
  }

  const Definition& definition_;
  const std::vector<Trial>& trials_;
  fs::path folder_;
  int64_t at_once_ = 1, threads_ = 1;
  report::SweepResults results_;
  std::vector<Running> running_;
  size_t shown_ = 0;  // results that the page has
  Clock::time_point shown_at_ = Clock::now();
};

std::string described(const report::SweepResults& sweep, const std::string& trial) {
  for (const auto& [name, values] : sweep.trials) {
    if (name != trial) continue;
    std::vector<std::string> parts;
    for (size_t s = 0; s < values.size(); ++s) parts.push_back(sweep.settings[s] + "=" + values[s]);
    return base::join(parts, " ");
  }
  return "";
}

void print_json(const report::SweepResults& sweep) {
  nlohmann::ordered_json trials = nlohmann::json::array();
  for (const auto& [name, values] : sweep.trials) {
    nlohmann::ordered_json one = {{"trial", name}, {"settings", nlohmann::json::object()}};
    for (size_t s = 0; s < values.size(); ++s) one["settings"][sweep.settings[s]] = values[s];
    if (const auto* last = sweep.last_of(name)) one["result"] = nlohmann::ordered_json::parse(report::line_of(*last));
    trials.push_back(std::move(one));
  }
  const auto ranking = sweep.ranking();
  const nlohmann::ordered_json all = {
      {"metric", sweep.metric}, {"best", ranking.empty() ? nlohmann::json() : nlohmann::json(ranking.front()->trial)}, {"trials", trials}};
  std::printf("%s\n", all.dump(2).c_str());
}

void print_best(const report::SweepResults& sweep) {
  constexpr size_t kShown = 5;
  const auto ranking = sweep.ranking();
  if (ranking.size() > kShown) std::printf("the best %zu of %zu:\n", kShown, ranking.size());
  std::printf("%-6s %-16s %s\n", "run", sweep.metric.c_str(), "settings");
  for (size_t i = 0; i < std::min(kShown, ranking.size()); ++i)
    std::printf("%-6s %-16.4f %s\n", ranking[i]->trial.c_str(), ranking[i]->metric, described(sweep, ranking[i]->trial).c_str());
}

}  // namespace

int run(const Options& options) {
  const auto definition = read_definition(options.file);
  const auto trials = trials_of(definition);
  const int64_t steps = check_trials(definition, trials);
  const fs::path folder = options.folder.empty() ? fs::path("sweeps") / options.file.stem() : options.folder;
  Sweep sweep(definition, trials, steps, folder);
  if (options.dry_run) {
    if (options.json) {
      print_json(sweep.results());
      return 0;
    }
    std::printf("%zu runs of %lld steps, %lld at once with %lld thread%s each, into %s\n", trials.size(), static_cast<long long>(steps),
                static_cast<long long>(sweep.at_once()), static_cast<long long>(sweep.threads()), sweep.threads() == 1 ? "" : "s",
                folder.c_str());
    for (const auto& trial : trials) std::printf("%s  %s\n", trial.name.c_str(), described(sweep.results(), trial.name).c_str());
    return 0;
  }
  base::make_directories(folder / "runs");
  const auto lock = base::FileLock::try_take(folder / "lock");
  if (!lock) throw base::UsageError("another ingot sweep is at work in {}", folder.string());
  sweep.resume();
  base::log_info("{} runs of {} steps, {} at once with {} thread{} each, in {}", trials.size(), steps, sweep.at_once(), sweep.threads(),
                 sweep.threads() == 1 ? "" : "s", folder.string());
  const resilience::StopSignal stop("\nasking the runs to stop; once more to stop at once\n", resilience::SecondSignal::ends_at_once);
  const bool is_complete = sweep.run(stop);
  const auto page = report::write_sweep_page(sweep.results(), folder);
  if (options.json) print_json(sweep.results());
  else print_best(sweep.results());
  base::log_info("wrote {}", page.string());
  if (!is_complete) base::log_info("stopped by a signal; the same command goes on");
  return sweep.results().ranking().empty() && is_complete ? 1 : 0;
}

}  // namespace ingot::sweep
