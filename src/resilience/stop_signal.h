// SIGINT and SIGTERM ask a run to stop: it finishes its step, saves and exits 0. A second signal ends the process at once.
#pragma once

namespace ingot::resilience {

/// Catches both signals while it lives; one instance per process.
class StopSignal {
 public:
  StopSignal();
  /// For work that stops within moments and must clean up: also catches SIGHUP, says `note`, and a second signal changes nothing.
  /// `note` must outlive it.
  explicit StopSignal(const char* note);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The signal that arrived, or 0.
  int received() const;
};

}  // namespace ingot::resilience
