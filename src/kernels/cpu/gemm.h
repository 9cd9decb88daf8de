// Dense fp32 matrix products on raw memory, row-major, with transposes, scaling and leading dims: BLAS's sgemm (MKL's, which
// libtorch brings along), at::mm where the linked torch exports no BLAS. Uses all threads when called from outside a parallel
// region and the calling thread alone inside one. Worth calling from about 128 x 128 x 128 on: a call costs 1 to 2 us; smaller
// tiles inside a kernel do better with tile.h.
#pragma once

#include <cstdint>

namespace ingot::kernels::cpu {

struct Factor {  // one operand: element (row, column) at data[row * step + column], or at data[column * step + row] when transposed
  const float* data;
  int64_t step;
  bool transposed = false;
};

/// c [m, n] = alpha * a [m, k] b [k, n] + beta * c, c row-major with c_step elements from row to row. c is not read when beta
/// is 0, and must not overlap a or b. m, n, k >= 0.
void gemm(int64_t m, int64_t n, int64_t k, float alpha, const Factor& a, const Factor& b, float beta, float* c, int64_t c_step);

}  // namespace ingot::kernels::cpu
