#include "base/stack_dump.h"

#include <execinfo.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>

namespace ingot::base {
namespace {

void say(std::string_view text) {
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

// Only calls that a signal handler may make: backtrace takes memory in its first call alone.
void dump(int) {
  const int before = errno;
  void* frames[64];
  const int count = backtrace(frames, 64);
  say(kStackBegins);
  say(", innermost first:\n");
  backtrace_symbols_fd(frames, count, STDERR_FILENO);
  say(kStackEnds);
  say("\n");
  errno = before;
}

}  // namespace

void dump_stack_on_signal() {
  void* frame = nullptr;
  backtrace(&frame, 1);
  struct sigaction action {};
  action.sa_handler = dump;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR2, &action, nullptr);
}

}  // namespace ingot::base
