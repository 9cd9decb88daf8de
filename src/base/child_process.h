// Processes that this one starts and outlives.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace ingot::base {

struct ChildStreams {
  int out = -1, err = -1;  // descriptors for its standard output and error, which stay the caller's; -1: this process's own
};

/// Starts `command`, found by PATH, with `environment` over this process's own and nothing to read. It is in a process group of its own, so
/// that a Ctrl-C at the terminal does not reach it, and gets SIGTERM when this process ends in whatever way. Throws UsageError when the
/// program cannot be started.
pid_t start_process(const std::vector<std::string>& command, const std::vector<std::pair<std::string, std::string>>& environment,
                    const ChildStreams& streams = {});

}  // namespace ingot::base
