// Stochastic rounding of fp32 to bf16: up or down at random, so that the mean is the number itself (Gupta et al., arXiv 1502.02551).
//
// What is added to the number before its lower half is cut off is a hash of the number and a key, murmur3's finalizer. Nothing depends
// on where an element lies or who holds it: the bits are the same for any sharding and any number of threads.
#pragma once

#include <cstdint>
#include <string_view>

#include "device/aten.h"

namespace ingot::kernels {

/// Another one for each tensor and step.
uint32_t rounding_key(std::string_view tensor, int64_t step);

/// bf16 of fp32, on any device. Infinity and NaN stay what they are.
at::Tensor round_stochastically(const at::Tensor& x, uint32_t key);

}  // namespace ingot::kernels
