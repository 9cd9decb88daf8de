// The table of this instruction set.
#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {

extern const RowKernels row_kernels;
const RowKernels row_kernels = {
    .join_norm_forward = join_norm_forward,
    .join_norm_backward = join_norm_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .split_rotate_forward = split_rotate_forward,
    .split_rotate_backward = split_rotate_backward,
    .cross_entropy = cross_entropy,
    .cross_entropy_part = cross_entropy_part,
    .cca_taps = cca_taps,
    .cca_heads = cca_heads,
    .cca_heads_backward = cca_heads_backward,
    .cca_taps_backward = cca_taps_backward,
    .short_convolution_forward = short_convolution_forward,
    .short_convolution_sums_backward = short_convolution_sums_backward,
    .short_convolution_backward = short_convolution_backward,
    .adamw = adamw,
    .momentum = momentum,
    .apply = apply,
};

}  // namespace ingot::kernels::cpu::INGOT_ISA
