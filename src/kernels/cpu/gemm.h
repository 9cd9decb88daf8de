// Matrices of fp32 or bf16 multiplied by kernels of our own: the problem and the functions, which are compiled once for each instruction
// set or unit (isa.h). Includes no ATen. Strides count elements.
#pragma once

#include <cstdint>

namespace ingot::kernels::cpu {

/// c [m, n] = scale a [m, k] b [k, n] + other_scale other [m, n], or all that added to c. a, b and other are of the kernel's dtype; of the
/// strides of a and of b one is 1.
struct Gemm {
  int64_t m, n, k;
  const void *a, *b;
  int64_t a_row, a_column, b_row, b_column;
  void* c;  // rows of c_row
  int64_t c_row;
  bool is_bf16, adds;  // c; else float
  float scale = 1;
  const void* other = nullptr;  // only if c is of its dtype
  int64_t other_row = 0;
  float other_scale = 0;
  bool is_symmetric = false;  // m = n: only tiles on and above the diagonal are multiplied, and what they have is mirrored; c as a and b

  // By lay_out: both operands in panels of a few rows or columns. a stays where it lies if it can; else its lines may be copied where they
  // are multiplied, which its columns are too scattered for.
  bool copies_a;
  int64_t a_panels, b_panels;  // to be packed before; a: none if it stays or is copied
  int64_t a_tasks, b_tasks;    // that pack them
  int64_t a_panel_size, b_panel_size;
  void *packed_a, *packed_b;
  int64_t block_rows, block_columns, row_blocks, tasks;
  int64_t mirrored;        // tasks of mirror
  int64_t scratch_floats;  // of one worker
};

struct GemmKernel {
  /// For so many workers; results do not depend on it.
  void (*lay_out)(Gemm&, int64_t workers);
  void (*pack_a)(const Gemm&, int64_t task);
  void (*pack_b)(const Gemm&, int64_t task);
  /// One block of c; task in [0, tasks).
  void (*multiply)(const Gemm&, int64_t task, float* scratch);
  /// Of a symmetric one, when all tasks are done: some rows below the diagonal.
  void (*mirror)(const Gemm&, int64_t task);
};

// Of bf16, summed in fp32, by the units that add up pairs.
namespace avx512_bf16 {
extern const GemmKernel pair_gemm;
}
namespace amx {
extern const GemmKernel pair_gemm;
}

// Of fp32.
namespace portable {
extern const GemmKernel float_gemm;
}
namespace avx2 {
extern const GemmKernel float_gemm;
}
namespace avx512 {
extern const GemmKernel float_gemm;
}

}  // namespace ingot::kernels::cpu
