// Matrix products whose result is known: what computes wrongly without saying so is found by asking what one knows. The numbers are
// integers so small that each sum is exact in fp32, in whatever order a library adds them.
#pragma once

#include <string>

#include "device/aten.h"

namespace ingot::kernels {

class KnownAnswer {
 public:
  static constexpr int64_t kLargest = 8;  // of the integers; up to 2^18 of their products fit into the 24 bits of fp32

  /// Of matrices [size, size] in `dtype` (bf16, fp16, fp32 or fp64) on `device`; the result is known from integers, by the CPU.
  KnownAnswer(at::Device device, at::ScalarType dtype, int64_t size);

  /// 256 on a CPU, 2,048 on a GPU: well below a millisecond of a core's or a GPU's time, and all of a GPU at work.
  static int64_t usual_size(at::Device device);

  /// Multiplies as training does. "", or what is wrong: "3 of 65536 numbers of a product in BFloat16 are wrong, the first at [12, 7]: 115
  /// instead of 131". Waits for the device.
  std::string find_error() const { return difference(multiply()); }

  at::Tensor multiply() const;
  std::string difference(const at::Tensor& product) const;

 private:
  at::Tensor a_, b_, result_;
};

}  // namespace ingot::kernels
