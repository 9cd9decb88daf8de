// Runs a program that nobody has read: in a folder and process group of its own, with bounds on time, memory and files, and none of this
// process's environment; where the system lets it (namespaces of Linux) without the network and a way to signal other processes. It is no
// jail: the program may read and write what its user may. One thread per program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::eval {

struct ProgramLimits {
  double seconds = 10;
  int64_t memory_mib = 512;
};

struct ProgramResult {
  bool has_passed = false;   // exit status 0 in time
  bool is_isolated = false;  // without network
  std::string why;           // it has not: "status 1", "signal 9", "10 s were over"
  std::string said;          // the end of its standard error
};

/// `command` and behind it the name of a file with `text`. Throws FileError where it cannot be started.
ProgramResult run_program(const std::vector<std::string>& command, const std::string& text, const ProgramLimits& limits);

}  // namespace ingot::eval
