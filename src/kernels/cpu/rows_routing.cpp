// Rows of tokens on their way to experts and back.
#include "kernels/cpu/rows_routing.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

template <class From, class To>
INGOT_INLINE void copy_row(const From* x, To* out, int64_t width) {
  for (int64_t i = 0; i < width; i += kLanes) store_some(out + i, load_some(x + i, width - i), width - i);
}
template <class T>
INGOT_INLINE void copy_row(const T* x, T* out, int64_t width) {
  __builtin_memcpy(out, x, static_cast<size_t>(width) * sizeof(T));
}

template <class From, class To>
void gather(const GatherRowsProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const From* x = static_cast<const From*>(p.x) + p.order[row] / p.top_k * p.width;
    copy_row(x, static_cast<To*>(p.out) + row * p.width, p.width);
  }
}

template <class From, class To>
void sum(const SumSlotsProblem p, int64_t begin, int64_t end) {  // p by value: no store can change it
  const From* x = static_cast<const From*>(p.x);
  for (int64_t token = begin; token < end; ++token) {
    const int64_t* rows = p.inverse + token * p.top_k;
    const From* first = x + rows[0] * p.width;
    To* out = static_cast<To*>(p.out) + token * p.width;
    if (p.top_k == 1) {
      copy_row(first, out, p.width);
      continue;
    }
    for_vectors(p.width, [&](int64_t i, auto n) {
      Float sum = load_some(first + i, n);
      for (int64_t k = 1; k < p.top_k; ++k) sum += load_some(x + rows[k] * p.width + i, n);
      store_some(out + i, sum, n);
    });
  }
}

}  // namespace

void sort_slots(const SortSlotsProblem& p, int64_t begin, int64_t end) {
  if (begin == end) return;
  int32_t* next = p.counts;  // row of each expert
  for (int64_t e = 0; e <= p.experts; ++e) next[e] = 0;
  for (int64_t slot = 0; slot < p.slots; ++slot) ++next[p.choice[slot]];
  int32_t behind = 0;
  for (int64_t e = 0; e <= p.experts; ++e) {
    const int32_t first = behind;
    behind += next[e];
    next[e] = first;
    if (e < p.experts) p.ends[e] = behind;
  }
  p.ends[p.experts - 1] = behind;
  for (int64_t slot = 0; slot < p.slots; ++slot) {
    const int64_t row = next[p.choice[slot]]++;
    p.order[row] = slot;
    p.inverse[slot] = row;
    p.is_routed[row] = p.choice[slot] < p.experts ? 1.0f : 0.0f;
  }
}

void gather_rows(const GatherRowsProblem& p, int64_t begin, int64_t end) {
  if (p.is_bf16) p.out_is_bf16 ? gather<bf16, bf16>(p, begin, end) : gather<bf16, float>(p, begin, end);
  else p.out_is_bf16 ? gather<float, bf16>(p, begin, end) : gather<float, float>(p, begin, end);
}

void sum_slots(const SumSlotsProblem& p, int64_t begin, int64_t end) {
  if (p.is_bf16) p.out_is_bf16 ? sum<bf16, bf16>(p, begin, end) : sum<bf16, float>(p, begin, end);
  else p.out_is_bf16 ? sum<float, bf16>(p, begin, end) : sum<float, float>(p, begin, end);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
