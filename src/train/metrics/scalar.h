// A step's numbers by name, as trackers keep them: "train/loss", 3.2. The names are those of docs/run-directory.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace ingot::train {

struct Scalar {
  std::string tag;
  double value = 0;
};

struct StepScalars {
  double time_s = 0;  // Unix time at the end of the step
  int64_t step = 0;
  std::vector<Scalar> scalars;
};

inline double unix_time_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

}  // namespace ingot::train
