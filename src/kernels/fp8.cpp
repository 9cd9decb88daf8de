#include "kernels/fp8.h"

#include <limits>

#include "base/error.h"
#include "base/work_scope.h"
#include "kernels/cpu/rows_fp8.h"
#include "kernels/reference/reference.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

constexpr const char *kRound = "ingot_round_to_fp8", *kLargest = "ingot_largest_magnitude";

struct Tile {
  int64_t rows, columns;
};

Tile tile_of(Fp8Scaling scaling, Fp8Operand operand, int64_t summed) {
  if (scaling == Fp8Scaling::tensor) return {1, 1};
  const int64_t length = scaling == Fp8Scaling::block ? 128 : 32;
  if (scaling == Fp8Scaling::block && operand == Fp8Operand::weight) return {length, length};
  return summed == 0 ? Tile{length, 1} : Tile{1, length};
}

}  // namespace

at::Tensor largest_magnitude(const at::Tensor& x) {
  if (!takes_rows(x, kLargest)) return at::linalg_vector_norm(x, std::numeric_limits<double>::infinity()).to(at::kFloat).view({1});
  auto largest = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  const cpu::LargestProblem p{
      .rows = x.size(0), .width = x.size(1), .is_bf16 = x.scalar_type() == at::kBFloat16, .x = nullptr, .largest = nullptr};
  const auto bind = [](cpu::LargestProblem& p, const RowTensors& t) {
    p.x = address(t.in[0]);
    p.largest = numbers(t.out[0]);
  };
  run_rows(RowCall<cpu::LargestProblem>{"largest_magnitude", kLargest, {{x}, {largest}, {}}, p, bind}, cpu::largest_magnitude);
  return largest.amax(0, /*keepdim=*/true);
}

at::Tensor round_to_fp8(const at::Tensor& x_in, Fp8Scaling scaling, Fp8Operand operand, int64_t summed) {
  const base::WorkScope scope("round_to_fp8", base::WorkKind::elementwise);
  const bool is_tensor = scaling == Fp8Scaling::tensor, is_e5m2 = is_tensor && operand == Fp8Operand::gradient;
  const auto tile = tile_of(scaling, operand, summed);
  if (x_in.numel() == 0) return x_in;
  const auto x = x_in.contiguous();
  const auto largest = is_tensor ? largest_magnitude(x) : at::Tensor();
  if (!takes_rows(x, kRound)) {
    const auto format = is_e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
    return is_tensor ? reference::round_to_fp8(x, x.size(0), x.size(1), format)
                     : reference::round_to_fp8(x, tile.rows, tile.columns, format);
  }
  auto out = at::empty_like(x);
  cpu::Fp8Problem p{};
  p.rows = (x.size(0) + tile.rows - 1) / tile.rows;
  p.height = x.size(0), p.width = x.size(1);
  p.tile_rows = tile.rows, p.tile_columns = tile.columns;
  p.is_bf16 = x.scalar_type() == at::kBFloat16, p.is_e5m2 = is_e5m2;
  const auto bind = [](cpu::Fp8Problem& p, const RowTensors& t) {
    p.x = address(t.in[0]);
    p.out = address(t.out[0]);
    p.largest = numbers(t.more[0]);
  };
  run_rows(
      RowCall<cpu::Fp8Problem>{"round_to_fp8", kRound, {{x}, {out}, {largest}}, p, bind, /*grain=*/std::max<int64_t>(1, 16 / tile.rows)},
      cpu::round_to_fp8);
  return out;
}

}  // namespace ingot::kernels
