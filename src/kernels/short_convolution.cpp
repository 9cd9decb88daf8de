#include "kernels/short_convolution.h"

#include "kernels/cpu/rows_short_convolution.h"
#include "kernels/differentiable.h"
#include "kernels/reference/reference.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

at::Tensor with_tail(const at::Tensor& x, const at::Tensor& tail, int64_t width) {
  const auto before = tail.defined() ? tail.to(x.scalar_type()) : at::zeros({x.size(0), width - 1, x.size(2)}, x.options());
  return device::cat({before, x}, 1);
}

// What the taps see, oldest token first, in the dtype of sums.
struct Taps {
  int64_t width, seq;
  at::Tensor rows;                  // [batch, width - 1 + seq, channels]
  at::Tensor weight;                // [width, channels]
  std::vector<at::Tensor> visible;  // by age of the token: [batch, seq, 1], 0 where it belongs to another document; empty without documents

  Taps(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& is_start, const at::Tensor& tail)
      : width(weights.size(2)), seq(x.size(1)) {
    const auto wide = reference::accumulation_type(x.scalar_type());
    rows = with_tail(x, tail, width).to(wide);
    weight = weights.squeeze(1).t().to(wide).contiguous();
    if (!is_start.defined()) return;
    auto hidden = at::zeros_like(is_start);
    visible.push_back(hidden.logical_not().unsqueeze(-1).to(wide));
    for (int64_t age = 1; age < width; ++age) {
      // A token of this age is hidden behind a start among the tokens younger than it.
      auto late = at::zeros_like(is_start);
      if (age - 1 < seq) late.narrow(1, age - 1, seq - age + 1).copy_(is_start.narrow(1, 0, seq - age + 1));
      hidden = hidden.logical_or(late);
      visible.push_back(hidden.logical_not().unsqueeze(-1).to(wide));
    }
  }
  at::Tensor tap(int64_t age) const { return rows.narrow(1, width - 1 - age, seq); }
  at::Tensor weight_of(int64_t age) const { return weight.select(0, width - 1 - age); }

  at::Tensor sum() const {
    auto out = tap(0) * weight_of(0);
    for (int64_t age = 1; age < width; ++age) {
      if (visible.empty()) out.addcmul_(tap(age), weight_of(age));
      else out.add_(tap(age) * weight_of(age) * visible[static_cast<size_t>(age)]);
    }
    return out;
  }
};

// Saves x; the sums are recomputed in backward.
struct ShortConvolutionFunction : Function<ShortConvolutionFunction, WorkKind::linear_attention> {
  static at::Tensor forward(Context& context, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& is_start,
                            const at::Tensor& tail) {
    context.save({x, weight, is_start, tail});
    return at::silu(Taps(x, weight, is_start, tail).sum()).to(x.scalar_type());
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto s = context.saved();
    const Taps taps(s[0], s[1], s[2], s[3]);
    const auto sum = taps.sum();
    const auto grad = at::silu_backward(grads[0].to(sum.scalar_type()), sum);
    auto grad_rows = at::zeros_like(taps.rows);
    std::vector<at::Tensor> grad_weight(static_cast<size_t>(taps.width));
    for (int64_t age = 0; age < taps.width; ++age) {
      const auto seen = taps.visible.empty() ? grad : grad * taps.visible[static_cast<size_t>(age)];
      grad_rows.narrow(1, taps.width - 1 - age, taps.seq).addcmul_(seen, taps.weight_of(age));
      grad_weight[static_cast<size_t>(taps.width - 1 - age)] = (seen * taps.tap(age)).sum(at::IntArrayRef{0, 1});
    }
    return {grad_rows.narrow(1, taps.width - 1, taps.seq).to(s[0].scalar_type()),
            at::stack(grad_weight, 1).unsqueeze(1).to(s[1].scalar_type())};
  }
};

using Problem = cpu::ShortConvolutionProblem;

constexpr const char *kForward = "ingot_short_convolution_forward", *kBackward = "ingot_short_convolution_backward";

// The same in one pass over memory each way; the sums are recomputed in backward.
struct FusedShortConvolutionFunction : Function<FusedShortConvolutionFunction, WorkKind::linear_attention> {
  struct Operands {
    at::Tensor x, weight, is_start, tail;
    Problem problem{};

    Operands(const at::Tensor& x_in, const at::Tensor& weights, const at::Tensor& starts, const at::Tensor& tail_in)
        : x(x_in.contiguous()), weight(weights.squeeze(1).t().to(at::kFloat).contiguous()) {
      if (starts.defined()) is_start = starts.contiguous();
      if (tail_in.defined() && weight.size(0) > 1) tail = tail_in.to(x.scalar_type()).contiguous();
      problem.rows = x.size(0) * x.size(1), problem.seq = x.size(1), problem.channels = x.size(2), problem.width = weight.size(0);
      problem.is_bf16 = x.scalar_type() == at::kBFloat16;
    }
    static void bind(Problem& p, const RowTensors& t) {
      p.x = address(t.in[0]);
      p.weight = numbers(t.in[1]);
      p.is_start = static_cast<const bool*>(address(t.more[0]));
      p.tail = address(t.more[1]);
    }
  };

  static at::Tensor forward(Context& context, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& is_start,
                            const at::Tensor& tail) {
    context.save({x, weight, is_start, tail});
    const Operands o(x, weight, is_start, tail);
    auto out = at::empty_like(o.x);
    const auto bind = [](Problem& p, const RowTensors& t) {
      Operands::bind(p, t);
      p.out = address(t.out[0]);
    };
    const RowTensors tensors{{o.x, o.weight}, {out}, {o.is_start, o.tail}};
    run_rows(RowCall<Problem>{"short_convolution", kForward, tensors, o.problem, bind, /*grain=*/8}, cpu::short_convolution_forward);
    return out;
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto s = context.saved();
    const Operands o(s[0], s[1], s[2], s[3]);
    auto grad_x = at::empty_like(o.x);
    const auto bind = [](Problem& p, const RowTensors& t) {
      Operands::bind(p, t);
      p.grad = address(t.in[2]);
      p.grad_x = address(t.out[0]);
    };
    RowCall<Problem> call{
        "short_convolution.backward", kBackward, {{o.x, o.weight, grads[0].contiguous()}, {grad_x}, {o.is_start, o.tail}}, o.problem, bind};
    call.gpu_run = 32;  // of bf16 move six times as much as their sums of four taps
    const auto sums = run_and_sum_rows(call, cpu::short_convolution_backward, o.problem.width, o.problem.width, o.problem.channels);
    return {grad_x, sums.t().unsqueeze(1).to(s[1].scalar_type())};
  }
};

}  // namespace

at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& is_start, const at::Tensor& tail) {
  const bool has_starts = is_start.defined(), has_tail = tail.defined();
  const bool is_usual = (!has_starts || is_start.sizes() == x.sizes().slice(0, 2)) &&
                        (!has_tail || tail.sizes() == at::IntArrayRef({x.size(0), weight.size(2) - 1, x.size(2)}));
  const bool is_fused = takes_rows(x, kForward) && x.numel() > 0 && is_usual && weight.size(2) <= Problem::kMostTaps;
  return is_fused ? FusedShortConvolutionFunction::apply(x, weight, is_start, tail)
                  : ShortConvolutionFunction::apply(x, weight, is_start, tail);
}

at::Tensor next_tail(const at::Tensor& x, const at::Tensor& tail, int64_t width) {
  const auto rows = with_tail(x, tail, width);
  return rows.narrow(1, rows.size(1) - (width - 1), width - 1).contiguous();
}

}  // namespace ingot::kernels
