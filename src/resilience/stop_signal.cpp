#include "resilience/stop_signal.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

namespace ingot::resilience {
namespace {

std::atomic<int> pending{0};
std::atomic<const char*> cleaning_note{nullptr};  // of work that a second signal must not end
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<const char*>::is_always_lock_free);

// Only async-signal-safe calls here.
void on_signal(int number) {
  const bool again = pending.exchange(number) != 0;
  const char* note = cleaning_note;
  if (again && !note) _exit(128 + number);
  if (again) return;
  if (!note) note = "\nstopping after this step, then saving; once more to stop at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, note, strlen(note));
}

}  // namespace

StopSignal::StopSignal() : StopSignal(nullptr) {}

StopSignal::StopSignal(const char* note) : note_before_(cleaning_note) {
  pending = 0;
  cleaning_note = note;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &interrupt_before_);
  sigaction(SIGTERM, &action, &terminate_before_);
  sigaction(SIGHUP, nullptr, &hang_up_before_);
  // nohup's wish is respected.
  if (note && hang_up_before_.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

StopSignal::~StopSignal() {
  sigaction(SIGINT, &interrupt_before_, nullptr);
  sigaction(SIGTERM, &terminate_before_, nullptr);
  sigaction(SIGHUP, &hang_up_before_, nullptr);
  cleaning_note = note_before_;
}

int StopSignal::received() const { return pending; }

}  // namespace ingot::resilience
