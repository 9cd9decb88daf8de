// What the operating system says about this process and machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ingot::base {

/// Resident memory now, and its high-water mark since the start or the last reset_peak_memory(). 0 where unknown.
int64_t resident_bytes();
int64_t peak_resident_bytes();
/// Starts a new high-water mark (Linux's clear_refs); does nothing where that is not allowed.
void reset_peak_memory();

/// "AMD EPYC …" from /proc/cpuinfo, or "unknown CPU".
std::string cpu_name();
/// Cores that this process may use (affinity respected).
int usable_cores();
int64_t total_memory_bytes();
std::string host_name();

/// The C library keeps freed blocks in the process instead of returning them to the kernel: training frees and takes the same
/// blocks in every step, and page faults cost 5 % of it. Call once, before the first of them. Big tensors are taken elsewhere
/// (kernels/cpu_memory.h).
void keep_freed_memory();
/// Returns what is free to the kernel now, so that resident memory is what is in use.
void release_freed_memory();

/// How much of the machine others use while something is measured, time stolen by a hypervisor included; begins when it is made.
class LoadWatch {
 public:
  LoadWatch();
  /// Of this process, over its threads.
  double own_cpu_s() const;
  /// Share of the cores that others used, in [0, 1]; `companions_cpu_s`: what processes used that count as one's own.
  double foreign_share(double companions_cpu_s = 0) const;

 private:
  std::chrono::steady_clock::time_point start_;
  double foreign_s_, own_s_;
};

/// Seconds that threads of this process were ready to run and had to wait for a core, summed over threads (Linux's
/// schedstat): the difference over a measurement says whether others disturbed it. 0 where unknown.
double waiting_for_cores_seconds();

/// Path of the running program, or "" where unknown.
std::string own_program();

/// Identifies the program file that this code is in (size and time of change): measurements of another build are stale.
std::string program_stamp();

}  // namespace ingot::base
