// Which device a run computes on.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace ingot::layers {

/// GPUs that this program can use; 0 in a CPU build.
int64_t gpus();

/// "auto" (the first GPU, else the CPU), "cpu" or "cuda" (also AMD's, under ROCm). Throws ConfigError for "cuda" without a GPU.
at::Device device_named(const std::string& name);

/// Makes GPU `index` (of those that are visible, in turn) the one that "cuda" means from now on, on this thread.
void use_gpu(int64_t index);

}  // namespace ingot::layers
