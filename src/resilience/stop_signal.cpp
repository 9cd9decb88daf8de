#include "resilience/stop_signal.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

namespace ingot::resilience {
namespace {

std::atomic<int> pending{0};
std::atomic<const char*> shown_note{nullptr};
std::atomic<bool> second_ends{true};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<const char*>::is_always_lock_free);

// Only async-signal-safe calls here.
void on_signal(int number) {
  if (pending.exchange(number) != 0) {
    if (second_ends) _exit(128 + number);
    return;
  }
  const char* note = shown_note;
  [[maybe_unused]] const auto written = write(STDERR_FILENO, note, strlen(note));
}

}  // namespace

StopSignal::StopSignal() : StopSignal("\nstopping after this step, then saving; once more to stop at once\n", SecondSignal::ends_at_once) {}

StopSignal::StopSignal(const char* note, SecondSignal second) : note_before_(shown_note), second_ended_before_(second_ends) {
  pending = 0;
  shown_note = note;
  second_ends = second == SecondSignal::ends_at_once;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &interrupt_before_);
  sigaction(SIGTERM, &action, &terminate_before_);
  sigaction(SIGHUP, nullptr, &hang_up_before_);
  // nohup's wish is respected.
  if (!second_ends && hang_up_before_.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

void StopSignal::say(const char* note) { shown_note = note; }

StopSignal::~StopSignal() {
  sigaction(SIGINT, &interrupt_before_, nullptr);
  sigaction(SIGTERM, &terminate_before_, nullptr);
  sigaction(SIGHUP, &hang_up_before_, nullptr);
  shown_note = note_before_;
  second_ends = second_ended_before_;
}

int StopSignal::received() const { return pending; }

}  // namespace ingot::resilience
