// What brings rows of tokens to their experts and back where only the device knows how many go to each: no host waits for it. Slot s
// belongs to token s / top_k. Fused kernels on CPUs and GPUs; elsewhere compositions of ATen operations. Nothing here records gradients.
// Limit: memory.
#pragma once

#include "device/aten.h"

namespace ingot::kernels {

/// int64 [classes] on the device of `choice`, which has classes from 0 on: how many there are of each. Does not wait for a GPU.
at::Tensor class_counts(const at::Tensor& choice, int64_t classes);

struct SortedSlots {
  at::Tensor order;      // int64 [slots]: the slot of each row
  at::Tensor ends;       // int32 [experts]: the first row behind each expert's; the last expert has the skipped slots, too
  at::Tensor inverse;    // int64 [slots]: the row of each slot
  at::Tensor is_routed;  // fp32 [slots], by row: 0 of skipped ones
};
/// choice: int64 [slots] in 0..experts (experts = skip). Stable: rows of an expert lie in the order of their slots, skipped ones last.
SortedSlots sort_slots(const at::Tensor& choice, int64_t experts);

/// x [tokens, width] -> [slots, width] in `out`: row r is the token's of slot order[r].
at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& order, int64_t top_k, at::ScalarType out);

/// x [slots, width] -> [tokens, width] in `out`: the sum of the rows inverse[s] of each token's slots s, in fp32 (fp64 of fp64), in their
/// order, rounded once.
at::Tensor sum_slots(const at::Tensor& x, const at::Tensor& inverse, int64_t top_k, at::ScalarType out);

}  // namespace ingot::kernels
