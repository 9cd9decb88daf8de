// Where a process is stuck: on a signal it writes the stack of its main thread to standard error and goes on.
#pragma once

#include <string_view>

namespace ingot::base {

inline constexpr std::string_view kStackBegins = "stack of the main thread", kStackEnds = "end of the stack";

/// SIGUSR2, by whoever wants to know: `kill -USR2 PID`, or a launcher that found the process hanging.
void dump_stack_on_signal();

}  // namespace ingot::base
