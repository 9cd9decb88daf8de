// What gpu/initialise.h fills. No ATen.
#pragma once

#include <cstdint>

namespace ingot::kernels::gpu {

/// Rows whose elements follow each other in the named stream of normals and in memory.
struct InitialiseProblem {
  int64_t rows, width;
  uint64_t key, first;         // of the stream, and its element that comes first
  int64_t stride, out_stride;  // from row to row, in elements of the stream and of memory
  double mean, deviation;
  int64_t element_bytes;  // 2: bf16, 4: fp32, 8: fp64
  void* out;
};

}  // namespace ingot::kernels::gpu
