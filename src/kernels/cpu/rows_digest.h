// Digests of the bytes of tensors.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

/// The sums of kernels/digest.h of some tensors, added to what is there. A row of the problem is a chunk of a tensor's bytes; one without
/// bytes has a chunk, too.
struct DigestProblem {
  static constexpr int kMost = 64;  // tensors: a GPU's kernel is handed the whole problem
  static constexpr int64_t kChunkBytes = 64 << 10;
  struct Tensor {
    const void* data;
    int64_t bytes, first_chunk;
  };
  int64_t rows, tensors;
  Tensor of[kMost];
  uint64_t* sums;  // [tensors, 2]; threads and blocks add to it in any order
};

/// What a word is mixed with.
constexpr uint64_t kDigestSeed = 0xd6e8feb86659fd93, kDigestStep = 0x9e3779b97f4a7c15, kDigestFirst = 0x9e3779b1,
                   kDigestSecond = 0x85ebca77;

INGOT_ROW_KERNEL(digest, const DigestProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
