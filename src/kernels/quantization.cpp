#include "kernels/quantization.h"

#include <limits>

#include "base/error.h"
#include "base/work_scope.h"
#include "kernels/cpu/rows_fp8.h"
#include "kernels/largest_of_rows.h"
#include "kernels/reference/reference.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

constexpr const char* kRound = "ingot_round_to_fp8";

constexpr int64_t kRotated = 16;  // tokens

bool is_gradient(OperandKind kind) { return kind == OperandKind::gradient || kind == OperandKind::expert_gradient; }

struct Tile {
  int64_t rows, columns;
};

Tile tile_of(Quantization quantization, OperandKind kind, int64_t summed) {
  if (quantization == Quantization::fp8) return {1, 1};
  const int64_t length = quantization == Quantization::fp8_block ? 128 : quantization == Quantization::mxfp8 ? 32 : 16;
  if (quantization != Quantization::mxfp8 && kind == OperandKind::weight) return {length, length};
  return summed == 0 ? Tile{length, 1} : Tile{1, length};
}

// [16, 16], orthogonal: a Hadamard matrix whose columns have signs. Made where it is used, so that no host waits for a copy.
at::Tensor rotation_of_tokens(const at::Tensor& like) {
  constexpr int64_t kSigns = 0x6b1d;  // drawn once
  const auto index = at::arange(kRotated, like.options().dtype(at::kLong));
  auto shared = index.unsqueeze(1).bitwise_and(index);
  for (const int64_t shift : {2, 1}) shared = shared.bitwise_xor(shared.bitwise_right_shift(shift));
  const auto flips = shared.bitwise_xor(at::full_like(index, kSigns).bitwise_right_shift(index)).bitwise_and(1);
  return (1 - 2 * flips).to(at::kFloat) * 0.25;
}

// Tokens that fill no 16 stay as they are.
at::Tensor rotate_tokens(const at::Tensor& x) {
  auto out = x.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  const int64_t blocks = x.size(0) / kRotated;
  if (blocks == 0) return out;
  auto whole = out.narrow(0, 0, blocks * kRotated).view({blocks, kRotated, x.size(1)});
  whole.copy_(at::matmul(rotation_of_tokens(x), whole));
  return out;
}

at::Tensor round_to_nvfp4(const at::Tensor& x_in, OperandKind kind, int64_t summed) {
  const bool is_rotated = summed == 0 && kind != OperandKind::weight, is_stochastic = is_gradient(kind);
  const auto tile = tile_of(Quantization::nvfp4, kind, summed);
  const auto x = is_rotated ? rotate_tokens(x_in) : x_in.contiguous();
  const auto largest = largest_magnitude(x);
  if (!device::is_cpu(x) || x.scalar_type() == at::kDouble)
    return reference::round_to_nvfp4(x, tile.rows, tile.columns, is_stochastic).to(x_in.scalar_type());
  auto out = at::empty_like(x, x_in.options());
  cpu::Fp4Problem p{};
  p.rows = (x.size(0) + tile.rows - 1) / tile.rows;
  p.height = x.size(0), p.width = x.size(1);
  p.tile_rows = tile.rows, p.tile_columns = tile.columns;
  p.is_bf16 = x.scalar_type() == at::kBFloat16, p.is_out_bf16 = out.scalar_type() == at::kBFloat16, p.is_stochastic = is_stochastic;
  const auto bind = [](cpu::Fp4Problem& p, const RowTensors& t) {
    p.x = address(t.in[0]);
    p.out = address(t.out[0]);
    p.largest = numbers(t.more[0]);
  };
  run_rows(RowCall<cpu::Fp4Problem>{"round_to_nvfp4", nullptr, {{x}, {out}, {largest}}, p, bind, /*grain=*/1}, cpu::round_to_nvfp4);
  return out;
}

}  // namespace

at::Tensor largest_of_rows(const at::Tensor& x) {
  auto largest = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  const cpu::LargestProblem p{
      .rows = x.size(0), .width = x.size(1), .is_bf16 = x.scalar_type() == at::kBFloat16, .x = nullptr, .largest = nullptr};
  const auto bind = [](cpu::LargestProblem& p, const RowTensors& t) {
    p.x = address(t.in[0]);
    p.largest = numbers(t.out[0]);
  };
  run_rows(RowCall<cpu::LargestProblem>{"largest_magnitude", kLargestOfRows, {{x}, {largest}, {}}, p, bind}, cpu::largest_magnitude);
  return largest;
}

at::Tensor largest_magnitude(const at::Tensor& x) {
  if (!takes_rows(x, kLargestOfRows)) return at::linalg_vector_norm(x, std::numeric_limits<double>::infinity()).to(at::kFloat).view({1});
  return largest_of_rows(x).amax(0, /*keepdim=*/true);
}

at::Tensor quantize(const at::Tensor& x_in, Quantization quantization, OperandKind kind, int64_t summed) {
  const base::WorkScope scope("quantize", base::WorkKind::elementwise);
  const bool is_tensor = quantization == Quantization::fp8, is_e5m2 = is_tensor && kind == OperandKind::gradient;
  const auto tile = tile_of(quantization, kind, summed);
  if (x_in.numel() == 0) return x_in;
  if (quantization == Quantization::nvfp4) return round_to_nvfp4(x_in, kind, summed);
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
