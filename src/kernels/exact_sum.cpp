#include "kernels/exact_sum.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rows_exact_sum.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

static_assert(kSquareParts == cpu::SquareSumProblem::kParts && kSquareBlock == cpu::SquareSumProblem::kBlock);

// Of kernels that no GPU has yet: there operators do the same.
constexpr const char *kRoundSymbol = "ingot_round_terms", *kSquareSymbol = "ingot_square_sum";
constexpr int64_t kRoundGrain = 16384;

double shift_of(int exponent) { return std::ldexp(1.5, 52 + exponent); }

bool is_fused(const at::Tensor& x, const char* symbol) {
  return x.scalar_type() == at::kFloat && x.is_contiguous() && runs_rows(x.device(), x.numel(), symbol);
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

}  // namespace

double rounded(double x, int exponent) { return (x + shift_of(exponent)) - shift_of(exponent); }

void round_into(const at::Tensor& sum, const at::Tensor& terms, int exponent, bool adds) {
  const at::NoGradGuard no_grad;
  const double shift = shift_of(exponent);
  if (is_fused(terms, kRoundSymbol)) {
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

at::Tensor square_sum(const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  using Problem = cpu::SquareSumProblem;
  if (!is_fused(x, kSquareSymbol)) return square_sum_by_operators(x);
  Problem problem{(x.numel() + Problem::kChunk - 1) / Problem::kChunk, x.numel(), nullptr, nullptr, {}};
  std::transform(kSquareExponents.begin(), kSquareExponents.end(), problem.shifts, shift_of);
  const auto sums = at::empty({problem.rows, kSquareParts}, x.options().dtype(at::kDouble));
  const auto bind = [](Problem& p, const RowTensors& t) {
    p.x = numbers(t.in[0]);
    p.sums = static_cast<double*>(address(t.out[0]));
  };
  run_rows(RowCall<Problem>{"square_sum", kSquareSymbol, {{x}, {sums}, {}}, problem, bind, /*grain=*/1}, cpu::square_sum);
  return sums.sum(0);
}

}  // namespace ingot::kernels
