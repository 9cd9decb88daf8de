// What Linux says of a process in /proc/PID/stat.
#pragma once

#include <cstdint>
#include <optional>

namespace ingot::base {

struct ProcessStat {
  char state = '?';         // 'R' runs, 'S' sleeps, 'D' waits for the kernel, 'T' is stopped, 'Z' has ended
  double cpu_s = 0;         // that its threads have used
  int64_t start_ticks = 0;  // since boot, when it began
};

/// Nothing where there is no such process.
std::optional<ProcessStat> process_stat(int64_t process);

}  // namespace ingot::base
