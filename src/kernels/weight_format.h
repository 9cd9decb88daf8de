// How a matrix that only multiplies is kept. For kernels, too: nothing but the language is included.
#pragma once

#include <cstdint>

namespace ingot::kernels {

/// int8, int4: symmetric, with one fp32 scale for each kWeightGroup inputs of an output: 8.5 and 4.5 bits a weight.
enum class WeightFormat { fp32, bf16, int8, int4 };

inline constexpr int64_t kWeightGroup = 64;
/// int4 in blocks of as many inputs: byte i of 64 holds weights i, in its low bits, and 64 + i of the block, each plus 8.
inline constexpr int64_t kInt4Block = 128;

constexpr bool has_scales(WeightFormat format) { return format == WeightFormat::int8 || format == WeightFormat::int4; }
/// Inputs that a row of weights has room for; those behind the last are 0.
constexpr int64_t padded_inputs(WeightFormat format, int64_t inputs) {
  const int64_t step = format == WeightFormat::int8 ? kWeightGroup : format == WeightFormat::int4 ? kInt4Block : 1;
  return (inputs + step - 1) / step * step;
}
constexpr int64_t row_bytes(WeightFormat format, int64_t inputs) {
  const int64_t padded = padded_inputs(format, inputs);
  return format == WeightFormat::fp32   ? 4 * padded
         : format == WeightFormat::bf16 ? 2 * padded
         : format == WeightFormat::int8 ? padded
                                        : padded / 2;
}

}  // namespace ingot::kernels
