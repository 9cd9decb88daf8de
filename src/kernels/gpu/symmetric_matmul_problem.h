// What gpu/symmetric_matmul.h multiplies. No ATen.
#pragma once

#include <cstdint>

namespace ingot::kernels::gpu {

constexpr int kSymmetricTile = 128;  // rows and columns of what a block computes

/// Matrices of bf16 [batch, rows, columns], whose elements of a row are neighbours. Data of 16 bytes, strides multiples of 8 elements.
struct MatrixRows {
  uint16_t* data;  // or null
  int64_t batch_stride, row_stride;
};

/// out = alpha p p^T + beta c, c null or symmetric. p [batch, m, k]; c, out [batch, m, m]; all sides at least 1.
struct SymmetricMatmulProblem {
  int64_t batch, m, k;
  MatrixRows p, c, out;  // out apart from the others
  float alpha, beta;
};

}  // namespace ingot::kernels::gpu
