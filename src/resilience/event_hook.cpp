#include "resilience/event_hook.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <utility>

#include "base/child_process.h"
#include "base/error.h"
#include "base/log.h"
#include "base/run_events.h"
#include "base/system_call.h"

namespace ingot::resilience {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(250);
constexpr size_t kLongestEvent = 100'000;  // bytes; the kernel takes 128 KiB for a variable

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace

EventHook::EventHook(std::string command, std::function<std::string()> run_directory, double limit_s)
    : command_(std::move(command)), run_directory_(std::move(run_directory)), limit_s_(limit_s), began_s_(now_s()) {
  thread_ = std::thread([this] { watch(); });
}

EventHook::~EventHook() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void EventHook::watch() {
  std::unique_lock lock(mutex_);
  while (true) {
    const bool ends = is_ending_;
    lock.unlock();
    try {
      tell_news();
    } catch (const std::exception& failure) {
      base::log_warning("--on-event: {}", failure.what());
    }
    lock.lock();
    if (ends) return;
    changed_.wait_for(lock, kLookEvery, [this] { return is_ending_; });
  }
}

// A run has events from before this launcher came, which are no news.
void EventHook::tell_news() {
  if (const auto now = run_directory_(); !now.empty() && now != known_of_) known_of_ = now, known_ = 0, size_ = -1;
  if (known_of_.empty()) return;
  std::error_code none;
  const auto size = static_cast<int64_t>(std::filesystem::file_size(std::filesystem::path(known_of_) / "events.jsonl", none));
  if (none || size == size_) return;
  size_ = size;
  const auto all = base::read_run_events(known_of_).events;
  for (; known_ < all.size(); ++known_) {
    const auto& event = all[known_];
    if (event.at("time_s").get<double>() < began_s_) continue;
    auto text = event.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    if (text.size() > kLongestEvent) {
      auto shorter = event;
      shorter.erase("last_lines");
      text = shorter.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).substr(0, kLongestEvent);
    }
    run(text);
  }
}

void EventHook::run(const std::string& event) const {
  const pid_t process = base::start_process({"sh", "-c", command_}, {{"INGOT_EVENT", event}});
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s_);
  int status = 0;
  while (waitpid(process, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > until) {
      kill(-process, SIGKILL);
      base::uninterrupted([&] { return waitpid(process, nullptr, 0); });
      base::log_warning("--on-event: the command took more than {:g} s, and was ended; the event is in {}/events.jsonl", limit_s_,
                        known_of_);
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    base::log_warning("--on-event: the command {}; the event is in {}/events.jsonl",
                      WIFEXITED(status) ? fmt::format("exited with status {}", WEXITSTATUS(status))
                                        : fmt::format("was ended by signal {}", WTERMSIG(status)),
                      known_of_);
}

}  // namespace ingot::resilience
