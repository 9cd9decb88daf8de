// Rows of tokens on their way to experts and back. Slot s belongs to token s / top_k.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

/// Slots in the order of their experts, stable. One row: the sort is a whole.
struct SortSlotsProblem {
  int64_t rows, slots, experts;
  const int64_t* choice;     // [slots], 0 to experts; experts: skipped, which come last
  int64_t *order, *inverse;  // [slots]: the slot of each row, the row of each slot
  int32_t* ends;             // [experts]: the first row behind each expert's; the last one is slots
  float* is_routed;          // [slots], by row: 0 of skipped ones
  int32_t* counts;           // scratch, [runs][experts + 1]; runs of slots, of which a CPU has one
  int64_t runs;
};
// Of a GPU's kernel, in which a thread has an expert and shared memory counts in fp32.
constexpr int64_t kMostClassesOfSlots = 512, kMostSlots = (int64_t{1} << 24) - 1;

/// out[row] = x[order[row] / top_k], rows of `width`.
struct GatherRowsProblem {
  int64_t rows, width, top_k;
  bool is_bf16, out_is_bf16;
  const void* x;
  const int64_t* order;
  void* out;
};

/// out[token] = x[inverse[token * top_k]] + …, in fp32 and in the order of the slots.
struct SumSlotsProblem {
  int64_t rows, width, top_k;  // rows: tokens
  bool is_bf16, out_is_bf16;
  const void* x;
  const int64_t* inverse;
  void* out;
};

INGOT_ROW_KERNEL(sort_slots, const SortSlotsProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(gather_rows, const GatherRowsProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(sum_slots, const SumSlotsProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
