#include "comm/reduce.h"

#include <algorithm>

#include "base/error.h"
#include "base/vector_clones.h"

namespace ingot::comm {
namespace {

constexpr int64_t kBlock = 1024;  // elements whose running result stays in the first level cache

template <class Wide>
inline __attribute__((always_inline)) void combine(Wide* total, const Wide* next, int64_t count, Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      for (int64_t i = 0; i < count; ++i) total[i] += next[i];
      return;
    case Reduction::max:
      for (int64_t i = 0; i < count; ++i) total[i] = std::max(total[i], next[i]);
      return;
    case Reduction::min:
      for (int64_t i = 0; i < count; ++i) total[i] = std::min(total[i], next[i]);
      return;
  }
}

template <class T, class Wide>
inline __attribute__((always_inline)) void reduce_as(void* to, std::span<const void* const> sources, int64_t elements,
                                                     Reduction reduction) {
  T* const output = static_cast<T*>(to);
  Wide total[kBlock], next[kBlock];
  for (int64_t from = 0; from < elements; from += kBlock) {
    const int64_t count = std::min(kBlock, elements - from);
    const auto* first = static_cast<const T*>(sources[0]) + from;
    for (int64_t i = 0; i < count; ++i) total[i] = static_cast<Wide>(first[i]);
    for (size_t s = 1; s < sources.size(); ++s) {
      const auto* source = static_cast<const T*>(sources[s]) + from;
      if constexpr (std::is_same_v<T, Wide>) {
        combine(total, source, count, reduction);
      } else {
        for (int64_t i = 0; i < count; ++i) next[i] = static_cast<Wide>(source[i]);
        combine(total, next, count, reduction);
      }
    }
    for (int64_t i = 0; i < count; ++i) output[from + i] = static_cast<T>(total[i]);
  }
}

#define INGOT_REDUCTION(name, T, Wide)                                                                                       \
  INGOT_VECTOR_CLONES void name(void* output, std::span<const void* const> sources, int64_t elements, Reduction reduction) { \
    reduce_as<T, Wide>(output, sources, elements, reduction);                                                                \
  }
INGOT_REDUCTION(reduce_double, double, double)
INGOT_REDUCTION(reduce_float, float, float)
INGOT_REDUCTION(reduce_bfloat16, at::BFloat16, float)
INGOT_REDUCTION(reduce_long, int64_t, int64_t)
INGOT_REDUCTION(reduce_int, int32_t, int32_t)
INGOT_REDUCTION(reduce_byte, uint8_t, uint8_t)
#undef INGOT_REDUCTION

}  // namespace

void reduce(void* output, std::span<const void* const> sources, int64_t elements, at::ScalarType dtype, Reduction reduction) {
  switch (dtype) {
    case at::kDouble: return reduce_double(output, sources, elements, reduction);
    case at::kFloat: return reduce_float(output, sources, elements, reduction);
    case at::kBFloat16: return reduce_bfloat16(output, sources, elements, reduction);
    case at::kLong: return reduce_long(output, sources, elements, reduction);
    case at::kInt: return reduce_int(output, sources, elements, reduction);
    case at::kByte: return reduce_byte(output, sources, elements, reduction);
    default: throw base::CommError("no reduction of {}", at::toString(dtype));
  }
}

}  // namespace ingot::comm
