// Rounding to what FP8 or FP4 holds.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

/// x [height, width] -> out, in tiles of tile_rows x tile_columns that share a scale. A row of the problem is a row of tiles.
struct Fp8Problem {
  int64_t rows, height, width, tile_rows, tile_columns;  // tile_columns: 1, 32 or 128
  bool is_bf16, is_e5m2;
  const void* x;
  const float* largest;  // [1], the largest magnitude of all of x, which is one tile then; null: each tile's own
  void* out;
};

/// x [height, width] -> out, as NVFP4 has it, in tiles that share a scale (kernels/quantization.h). A row of the problem is a row of tiles.
struct Fp4Problem {
  int64_t rows, height, width, tile_rows, tile_columns;  // tile_columns: 1 or 16
  bool is_bf16, is_out_bf16, is_stochastic;
  const void* x;
  const float* largest;  // [1], the largest magnitude of x
  void* out;
};

/// x [rows, width] -> largest [rows], the largest magnitude of each row; NaNs are passed over.
struct LargestProblem {
  int64_t rows, width;
  bool is_bf16;
  const void* x;
  float* largest;
};

/// x [rows, width] -> codes [rows, width] or, transposed, [width, rows], and their scale. With `row_of_place` row i is x's row_of_place[i],
/// zeros where that is below 0.
struct Fp8CodesProblem {
  int64_t rows, width;
  bool is_bf16, is_e5m2, is_transposed;
  const void* x;
  const float* largest;         // [1], the largest magnitude of x; null: row_scale has the scales
  const float* row_scale;       // [x's rows], powers of two
  const int32_t* row_of_place;  // [rows]; null: x's rows as they are
  uint8_t* codes;
  float* scale;  // [1]; null with row_scale
};

/// Of groups of rows that lie one behind the other: the scale in e4m3 that a group's rows share (where `largest` is given), and where they
/// lie when each group begins at a multiple of 16 and has 16 places at least (where `row_of_place` is). Rows behind the last end and those
/// that do not count have a scale of their own together, and no place.
struct Fp8GroupsProblem {
  int64_t rows, all_rows, places;      // rows: groups; all_rows below 2^24
  const int32_t* ends;                 // [groups]: the first row behind each group's
  const float* counts;                 // [all_rows]: 0 of rows of the last group that do not count; null: all do
  const float* largest;                // [all_rows]: the largest magnitude of each
  float *row_scale, *group_scale;      // [all_rows], [groups]
  int32_t *row_of_place, *place_ends;  // [places]: -1 where no row is; [groups]
};
constexpr int64_t kPlacesOfGroups = 16;

INGOT_ROW_KERNEL(fp8_codes, const Fp8CodesProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(fp8_groups, const Fp8GroupsProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(round_to_fp8, const Fp8Problem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(round_to_nvfp4, const Fp4Problem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(largest_magnitude, const LargestProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
