// For tests: the device that they run layers and train on. `./scripts/test --device emulated` sets INGOT_TEST_DEVICE=emulated.
#pragma once

#include <cstdlib>
#include <string_view>

#include "device/virtual_device.h"

namespace ingot::device {

inline bool tests_are_emulated() {
  const char* name = std::getenv("INGOT_TEST_DEVICE");
  return name != nullptr && std::string_view(name) == "emulated";
}

/// The CPU, or the emulated device of a rank.
inline at::Device test_device(int rank = 0) { return tests_are_emulated() ? emulated_device(rank) : at::Device(at::kCPU); }

}  // namespace ingot::device
