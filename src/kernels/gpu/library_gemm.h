// A GEMM by the vendor's library with one of its algorithms (gpu/library_gemm.cpp, in libingot_cuda.so). No ATen.
#pragma once

#include <array>
#include <cstdint>

namespace ingot::kernels::gpu {

enum class GemmNumbers : int32_t { fp32, bf16 };

/// Elements of a row are neighbours, or by_column those of a column; `stride` elements to the next row (column).
struct GemmMatrix {
  const void* data;
  int64_t stride;
  bool by_column;
};

/// out [m, n] = a [m, k] b [k, n] + (adds ? out : 0) + bias [n], summed in fp32. All sides at least 1, all addresses multiples of 16.
struct LibraryGemm {
  int64_t m, n, k;
  GemmMatrix a, b;
  void* out;  // by row
  int64_t out_stride;
  const void* bias;           // of out's numbers, or null
  GemmNumbers numbers, sums;  // of a and b; of out
  bool adds;
};

/// What the library takes for the same sizes, strides and numbers; it means something to that version of it alone.
struct GemmAlgorithm {
  std::array<uint64_t, 8> words;
  uint64_t workspace_bytes;
  bool operator==(const GemmAlgorithm&) const = default;
};

constexpr uint64_t kMostGemmWorkspace = uint64_t{32} << 20;  // bytes

}  // namespace ingot::kernels::gpu
