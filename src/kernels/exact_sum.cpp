#include "kernels/exact_sum.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rows_exact_sum.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

static_assert(kSquareParts == cpu::SquareSumProblem::kParts && kSquareBlock == cpu::SquareSumProblem::kBlock);

// A GPU whose library lacks them does the same by operators.
constexpr const char *kRoundSymbol = "ingot_round_terms", *kSquareSymbol = "ingot_square_sum", *kAddSymbol = "ingot_add_chunks";
constexpr int64_t kRoundGrain = 16384;

double shift_of(int exponent) { return std::ldexp(1.5, 52 + exponent); }

// `elements`: that the kernel counts.
bool is_fused(const at::Tensor& x, int64_t elements, const char* symbol) {
  return x.scalar_type() == at::kFloat && x.is_contiguous() && runs_rows(x.device(), elements, symbol);
}

at::Tensor square_sum_by_operators(const at::Tensor& x) {
  const int64_t padding = (kSquareBlock - x.numel() % kSquareBlock) % kSquareBlock;
  auto rest = at::constant_pad_nd(x.to(at::kDouble), {0, padding}).square_().view({-1, kSquareBlock});
  for (int64_t half = kSquareBlock / 2; half > 0; half /= 2) rest = rest.narrow(1, 0, half) + rest.narrow(1, half, half);
  std::vector<at::Tensor> parts;
  for (const int exponent : kSquareExponents) {
    const auto part = (rest + shift_of(exponent)).sub_(shift_of(exponent));
    parts.push_back(part.sum());
    rest = rest - part;
  }
  return at::stack(parts);
}

void bind_tensors(cpu::SquareSumProblem& p, const RowTensors& t) {
  for (int64_t i = 0; i < p.tensors; ++i) p.of[i].data = numbers(t.in[static_cast<size_t>(i)]);
  p.sums = static_cast<double*>(address(t.out[0]));
}

void bind_chunks(cpu::ChunkSumProblem& p, const RowTensors& t) {
  p.of_chunks = static_cast<const double*>(address(t.in[0]));
  p.sums = static_cast<double*>(address(t.out[0]));
}

// Of as many tensors as a kernel takes. What chunks add up to is added up in their order, so that also beyond the limit of exact sums the
// bits are the same each time.
void add_up(const TensorList& tensors, const at::Tensor& sums) {
  using Problem = cpu::SquareSumProblem;
  Problem chunks{};
  cpu::ChunkSumProblem totals{};
  for (const auto& x : tensors) {
    chunks.of[chunks.tensors++] = {nullptr, x.numel(), chunks.rows};
    chunks.rows += (x.numel() + Problem::kChunk - 1) / Problem::kChunk;
    totals.first_chunk[++totals.rows] = chunks.rows;
  }
  std::transform(kSquareExponents.begin(), kSquareExponents.end(), chunks.shifts, shift_of);
  const auto of_chunks = at::empty({chunks.rows, kSquareParts}, sums.options());
  run_rows(RowCall<Problem>{"square_sum", kSquareSymbol, {tensors, {of_chunks}, {}}, chunks, bind_tensors, /*grain=*/1}, cpu::square_sum);
  run_rows(RowCall<cpu::ChunkSumProblem>{"add_chunks", kAddSymbol, {{of_chunks}, {sums}, {}}, totals, bind_chunks}, cpu::add_chunks);
}

}  // namespace

double rounded(double x, int exponent) { return (x + shift_of(exponent)) - shift_of(exponent); }

void round_into(const at::Tensor& sum, const at::Tensor& terms, int exponent, bool adds) {
  const at::NoGradGuard no_grad;
  const double shift = shift_of(exponent);
  if (is_fused(terms, terms.numel(), kRoundSymbol)) {
    const RowTensors tensors{adds ? TensorList{terms, sum} : TensorList{terms}, {sum}, {}};
    const auto bind = [](cpu::RoundProblem& p, const RowTensors& t) {
      p.terms = numbers(t.in[0]);
      p.sum = static_cast<double*>(address(t.out[0]));
    };
    run_rows(
        RowCall<cpu::RoundProblem>{"round_terms", kRoundSymbol, tensors, {terms.numel(), nullptr, nullptr, shift, adds}, bind, kRoundGrain},
        cpu::round_terms);
    return;
  }
  const auto rounded_terms = terms.to(at::kDouble).add_(shift).sub_(shift);
  adds ? sum.add_(rounded_terms) : sum.copy_(rounded_terms);
}

at::Tensor square_sums(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  if (tensors.empty()) return at::empty({0, kSquareParts}, at::kDouble);
  const auto count = static_cast<int64_t>(tensors.size());
  const auto sums = at::empty({count, kSquareParts}, tensors.front().options().dtype(at::kDouble));
  const auto takes = [&](int64_t i) { return is_fused(tensors[static_cast<size_t>(i)], 0, kSquareSymbol); };  // counts within chunks
  for (int64_t from = 0, end = 0; from < count; from = end) {
    for (end = from; end < count && end - from < cpu::SquareSumProblem::kMost && takes(end);) ++end;
    if (end > from) add_up({tensors.begin() + from, tensors.begin() + end}, sums.narrow(0, from, end - from));
    else sums[end].copy_(square_sum_by_operators(tensors[static_cast<size_t>(end)])), ++end;
  }
  return sums;
}

}  // namespace ingot::kernels
