// Problems that are a table of tensors, cut into chunks: which tensor a chunk is of. For the sources of one instruction set.
#pragma once

#include <cstdint>

namespace ingot::kernels::cpu::INGOT_ISA {

/// visit(tensor, begin, end, chunk) for each chunk of [first, last), with the elements of the tensor that it has.
template <class Problem, class Visit>
void for_each_chunk(const Problem& p, int64_t first, int64_t last, const Visit& visit) {
  int64_t t = 0;
  for (int64_t chunk = first; chunk < last; ++chunk) {
    while (t + 1 < p.tensors && p.of[t + 1].first_chunk <= chunk) ++t;
    const int64_t begin = (chunk - p.of[t].first_chunk) * Problem::kChunk, left = p.of[t].elements - begin;
    visit(p.of[t], begin, begin + (left < Problem::kChunk ? left : Problem::kChunk), chunk);
  }
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
