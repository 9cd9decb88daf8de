// Problems that are a table of tensors, cut into chunks, one for each block: which tensor a chunk is of.
#pragma once

#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

/// By halves. Of tensors that begin at the same chunk the last: the others have none.
template <class Problem>
INGOT_DEVICE int tensor_of_chunk(const Problem& p, int64_t chunk) {
  constexpr int kHalf = 64;
  static_assert(Problem::kMost <= 2 * kHalf);
  int t = 0;
  for (int half = kHalf; half > 0; half /= 2)
    if (t + half < p.tensors && p.of[t + half].first_chunk <= chunk) t += half;
  return t;
}

/// The elements of a tensor that this block has.
struct Chunk {
  int64_t begin, size;
};
template <class Problem, class Tensor>
INGOT_DEVICE Chunk own_chunk(const Problem&, const Tensor& x) {
  const int64_t begin = (block_index() - x.first_chunk) * Problem::kChunk, left = x.elements - begin;
  return {begin, left < Problem::kChunk ? left : Problem::kChunk};
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
