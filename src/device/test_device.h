// For tests: the device that they run layers and train on, by INGOT_TEST_DEVICE: "emulated" (`./scripts/test --device emulated`), or "cuda"
// (`./scripts/gpu-check`).
#pragma once

#include <cstdlib>
#include <string>

#include "device/device.h"
#include "device/virtual_device.h"

namespace ingot::device {

inline std::string test_device_name() {
  const char* name = std::getenv("INGOT_TEST_DEVICE");
  return name != nullptr ? name : "cpu";
}

/// libtorch looks for a GPU once, at the first backward pass: what it needs for one is loaded before the first test.
inline const bool has_gpu_library = test_device_name() == "cuda" && gpus() > 0;

inline bool tests_are_emulated() { return test_device_name() == "emulated"; }

/// The CPU, the emulated device of a rank, or the GPU that all ranks of a test share.
inline at::Device test_device(int rank = 0) { return tests_are_emulated() ? emulated_device(rank) : device_named(test_device_name()); }

/// Of tests of what only GPUs do: the GPU, or else the emulated device, also where all others run on the CPU.
inline at::Device gpu_of_tests() { return test_device_name() == "cuda" ? test_device() : emulated_device(0); }

}  // namespace ingot::device
