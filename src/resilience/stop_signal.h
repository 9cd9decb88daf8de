// SIGINT and SIGTERM ask a run to stop: it finishes its step, saves and exits 0. A second signal ends the process at once.
#pragma once

#include <csignal>

namespace ingot::resilience {

/// Catches both signals while it lives. At most one of a process at work: one that is made while another lives takes its place until it
/// goes, and the other one then knows of the signal, too.
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

 private:
  struct sigaction interrupt_before_, terminate_before_, hang_up_before_;
  const char* note_before_;
};

}  // namespace ingot::resilience
