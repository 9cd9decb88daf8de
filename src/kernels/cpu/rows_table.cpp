// The table of this instruction set.
#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {

extern const RowKernels row_kernels;
const RowKernels row_kernels = {join_norm_forward,
                                join_norm_backward,
                                swiglu_forward,
                                swiglu_backward,
                                split_rotate_forward,
                                split_rotate_backward,
                                cross_entropy,
                                cross_entropy_part,
                                cca_taps,
                                cca_heads,
                                cca_heads_backward,
                                cca_taps_backward,
                                short_convolution_forward,
                                short_convolution_sums_backward,
                                short_convolution_backward,
                                adamw,
                                momentum,
                                apply};

}  // namespace ingot::kernels::cpu::INGOT_ISA
