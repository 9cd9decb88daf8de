// FLOPs that MFU counts: the step line, the planner, the benchmarks and the report use the same convention.
//
// Convention (printed beside every MFU): a multiply-add is 2 FLOPs; only GEMMs and attention are counted; causal attention is counted once,
// for the pairs that are visible; of an MoE only the experts a token uses; what recomputation repeats is not counted; backward is twice
// forward. models/flops.h counts a whole model.
#pragma once

#include <cstdint>

namespace ingot::layers {

constexpr double kBackwardFactor = 2;  // backward FLOPs = 2 x forward
inline constexpr const char* kMfuConvention =
    "MFU = model FLOP/s over the GEMM peak that was measured, or is in a cluster's file; multiply-add = 2, causal attention counted once, "
    "active experts only, "
    "recompute not counted";

/// Pairs (query, key) that causal attention visits in one row of `seq` tokens; window 0 = unlimited.
double visible_pairs(int64_t seq, int64_t window);

/// Of causal attention over rows of `seq` tokens, forward: 4 * visible pairs * heads * head_dim.
double attention_flops(int64_t batch, int64_t seq, int64_t window, int64_t heads, int64_t head_dim);

}  // namespace ingot::layers
