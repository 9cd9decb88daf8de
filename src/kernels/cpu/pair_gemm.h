// Matrices of bf16 multiplied by the units that add up pairs (isa.h, PairUnit): the problem and the functions, which are compiled once for
// each unit. Includes no ATen. Strides count elements.
#pragma once

#include <cstdint>

namespace ingot::kernels::cpu {

/// c [m, n] = scale a [m, k] b [k, n], or added to it; in bf16 + other_scale other [m, n], too. Of the strides of a and of b one is 1.
struct PairGemm {
  int64_t m, n, k;
  const uint16_t *a, *b;
  int64_t a_row, a_column, b_row, b_column;
  void* c;  // rows of c_row; bf16, or float
  int64_t c_row;
  bool is_bf16, adds;
  float scale = 1;
  const uint16_t* other = nullptr;
  int64_t other_row = 0;
  float other_scale = 0;
  bool is_symmetric = false;  // m = n: only tiles on and above the diagonal are multiplied, and what they have is mirrored; c in bf16

  // By lay_out: both operands in panels of 32 rows or columns, k filled up to a multiple of 32 with zeros. a stays where it lies if it can.
  int64_t a_panels, b_panels;  // to be packed; a: none if it stays
  int64_t a_tasks, b_tasks;    // that pack them
  int64_t panel_size;          // elements of one
  uint16_t *packed_a, *packed_b;
  int64_t block_columns, row_blocks, tasks;
  int64_t scratch_floats;  // of one worker
};

struct PairGemmKernel {
  void (*lay_out)(PairGemm&);
  void (*pack_a)(const PairGemm&, int64_t task);
  void (*pack_b)(const PairGemm&, int64_t task);
  /// One block of c; task in [0, tasks).
  void (*multiply)(const PairGemm&, int64_t task, float* scratch);
  /// Of a symmetric one, when all tasks are done: 32 rows below the diagonal.
  void (*mirror)(const PairGemm&, int64_t panel);
};

namespace avx512_bf16 {
extern const PairGemmKernel pair_gemm;
}
namespace amx {
extern const PairGemmKernel pair_gemm;
}

}  // namespace ingot::kernels::cpu
