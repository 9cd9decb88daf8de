// What goes on until Ctrl-C, looking up once a second.
#pragma once

#include <signal.h>

namespace ingot::report {

/// SIGINT and SIGTERM wait for wait_for_one() while it lives, also those of threads that begin meanwhile.
class HeldSignals {
 public:
  HeldSignals() {
    ::sigemptyset(&held_);
    ::sigaddset(&held_, SIGINT);
    ::sigaddset(&held_, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  /// False when none has come for a second.
  bool wait_for_one() const {
    const timespec second{1, 0};
    return ::sigtimedwait(&held_, nullptr, &second) > 0;
  }

 private:
  sigset_t held_, before_;
};

}  // namespace ingot::report
