// How a matrix that only multiplies is kept. For kernels, too: nothing but the language is included.
#pragma once

#include <cstdint>

namespace ingot::kernels {

/// int8, int4: symmetric, with one fp32 scale for each kWeightGroup inputs of an output: 8.5 and 4.5 bits a weight.
enum class WeightFormat { fp32, bf16, int8, int4 };

inline constexpr int64_t kWeightGroup = 64;
/// Outputs of int8 and int4 lie in panels of as many, one panel's groups of inputs after another, with zeros for those that a last panel
/// lacks. A group is, of int8, for each two inputs both weights of output 0, both of output 1 ...; of int4 for each i = 0, 4 ... 28 four
/// bytes of each output, which hold weights i to i + 3 in their low bits and 32 + i to 35 + i in their high ones, each plus 8. Scales
/// are [panels, groups, kWeightPanel].
inline constexpr int64_t kWeightPanel = 16;

constexpr bool has_scales(WeightFormat format) { return format == WeightFormat::int8 || format == WeightFormat::int4; }
/// Inputs that a row of weights has room for; those behind the last are 0.
constexpr int64_t padded_inputs(WeightFormat format, int64_t inputs) {
  const int64_t step = has_scales(format) ? kWeightGroup : 1;
  return (inputs + step - 1) / step * step;
}
/// Outputs that there is room for.
constexpr int64_t padded_outputs(WeightFormat format, int64_t outputs) {
  const int64_t step = has_scales(format) ? kWeightPanel : 1;
  return (outputs + step - 1) / step * step;
}
/// Bytes of an output's weights.
constexpr int64_t row_bytes(WeightFormat format, int64_t inputs) {
  const int64_t padded = padded_inputs(format, inputs);
  return format == WeightFormat::fp32   ? 4 * padded
         : format == WeightFormat::bf16 ? 2 * padded
         : format == WeightFormat::int8 ? padded
                                        : padded / 2;
}

}  // namespace ingot::kernels
