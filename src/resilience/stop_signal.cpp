#include "resilience/stop_signal.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

namespace ingot::resilience {
namespace {

std::atomic<int> pending{0};
static_assert(std::atomic<int>::is_always_lock_free);
struct sigaction before_interrupt, before_terminate;

// Only async-signal-safe calls here.
void on_signal(int number) {
  if (pending.exchange(number) != 0) _exit(128 + number);
  static constexpr char kNote[] = "\nstopping after this step, then saving; once more to stop at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kNote, sizeof(kNote) - 1);
}

}  // namespace

StopSignal::StopSignal() {
  pending = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, &before_interrupt);
  sigaction(SIGTERM, &action, &before_terminate);
}

StopSignal::~StopSignal() {
  sigaction(SIGINT, &before_interrupt, nullptr);
  sigaction(SIGTERM, &before_terminate, nullptr);
}

int StopSignal::received() const { return pending; }

}  // namespace ingot::resilience
