// Initial values as a pure function of (seed, tensor name, global element index): the same numbers whatever part of the
// tensor a rank holds, on every device. Values are made on the host in fp32; kernels/initialise.h makes the same on GPUs.
#pragma once

#include <span>

#include "tensor/logical_tensor.h"

namespace ingot::tensor {

struct Initial {
  enum class Kind { constant, normal } kind = Kind::constant;
  double mean = 0;  // the value itself, for a constant
  double deviation = 0;
  static Initial constant(double value) { return {Kind::constant, value, 0}; }
  static Initial normal(double deviation) { return {Kind::normal, 0, deviation}; }
};

/// Fills `out` (row-major, box.extent elements) with the values of `box` of the named tensor. Uses all threads.
void initialise(std::span<float> out, uint64_t seed, const LogicalTensor& tensor, const Box& box, const Initial& initial);

}  // namespace ingot::tensor
