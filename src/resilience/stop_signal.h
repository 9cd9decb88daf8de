// SIGINT and SIGTERM ask a run to stop: it finishes its step, saves and exits 0. A second signal ends the process at once.
#pragma once

#include <csignal>
#include <cstdint>

namespace ingot::resilience {

enum class SecondSignal : uint8_t { ends_at_once, changes_nothing };

/// Catches both signals while it lives. At most one of a process at work: one that is made while another lives takes its place until it
/// goes, and the other one then knows of the signal, too.
class StopSignal {
 public:
  /// For training: says so.
  StopSignal();
  /// Says `note`, which must outlive it. Work that stops within moments and must clean up lets a second signal change nothing, and then
  /// catches SIGHUP, too.
  explicit StopSignal(const char* note, SecondSignal second = SecondSignal::changes_nothing);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Says this from now on; it must outlive the object.
  static void say(const char* note);
  /// The signal that arrived, or 0.
  int received() const;

 private:
  struct sigaction interrupt_before_, terminate_before_, hang_up_before_;
  const char* note_before_;
  bool second_ended_before_;
};

}  // namespace ingot::resilience
