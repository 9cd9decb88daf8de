// What a layer costs, stated once: MFU in the step line, the planner, the benchmarks and the report all use these numbers.
//
// Convention (printed beside every MFU): a multiply-add is 2 FLOPs; only matrix products and attention are counted;
// causal attention is counted once, for the pairs that are visible; of a mixture only the experts a token uses; what
// recomputation repeats is not counted; backward is twice forward.
#pragma once

#include <cstdint>

namespace ingot::layers {

struct Cost {
  double flops = 0;             // forward, for the stated number of tokens
  double weight_bytes = 0;      // weights read once
  double activation_bytes = 0;  // activations read and written by the forward pass
  double saved_bytes = 0;       // kept for backward without recomputation
  Cost& operator+=(const Cost& other);
};
inline Cost operator+(Cost a, const Cost& b) { return a += b; }

constexpr double kBackwardFactor = 2;  // backward FLOPs = 2 x forward
inline constexpr const char* kMfuConvention =
    "MFU = model FLOP/s over this machine's measured GEMM peak; multiply-add = 2, causal attention counted once, active experts only, "
    "recompute not counted";

/// A product with a weight [out, in] for `tokens` rows of `element_bytes` each; keeps its input for backward when `saves_input`.
Cost linear_cost(int64_t tokens, int64_t in, int64_t out, int64_t element_bytes, bool saves_input = true);

/// Causal attention over rows of `seq` tokens, `window` 0 = unlimited: 4 * visible pairs * heads * head_dim.
Cost attention_cost(int64_t batch, int64_t seq, int64_t window, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t element_bytes);

/// Pairs (query, key) that causal attention visits in one row of `seq` tokens.
double visible_pairs(int64_t seq, int64_t window);

}  // namespace ingot::layers
