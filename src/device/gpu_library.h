// What a machine with GPUs adds, loaded at run time: torch's own library for them, and libingot_cuda.so (src/gpu: NCCL, kernels) beside the
// program. One build serves nodes with and without GPUs, and a program on a CPU starts without CUDA's two gigabytes.
#pragma once

#include <string>

namespace ingot::device {

struct GpuLibrary {
  std::string vendor;      // "nvidia", "amd"; "" when this machine has no driver of theirs
  bool has_torch = false;  // ATen computes on GPUs
  void* own = nullptr;     // libingot_cuda.so; null: only what ATen has, and no NCCL
  std::string problem;     // what could not be loaded and what to do
};

/// Loads them at the first call, some seconds on a machine with GPUs. It must come before torch is asked for GPUs in another way: torch
/// keeps its first answer.
const GpuLibrary& gpu_library();

void* find_gpu_function(const char* name);
/// A function of libingot_cuda.so by its C name; null without it.
template <class Function>
Function* gpu_function(const char* name) {
  return reinterpret_cast<Function*>(find_gpu_function(name));
}

}  // namespace ingot::device
