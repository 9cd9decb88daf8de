#include "kernels/cross_entropy.h"

#include "kernels/cpu/rows_cross_entropy.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {

namespace {

bool is_fused(const at::Tensor& logits, const char* symbol) {
  return takes_rows(logits, symbol) && logits.scalar_type() == at::kFloat && logits.stride(1) == 1;
}
bool is_fused_gradient(const at::Tensor& gradient) {
  return (gradient.scalar_type() == at::kFloat || gradient.scalar_type() == at::kBFloat16) && gradient.stride(1) == 1;
}

}  // namespace

at::Tensor cross_entropy(at::Tensor logits, const at::Tensor& targets, double scale, const at::Tensor& gradient, double z_loss) {
  constexpr const char* kSymbol = "ingot_cross_entropy";
  if (is_fused(logits, kSymbol) && (!gradient.defined() || is_fused_gradient(gradient))) {
    const auto labels = targets.contiguous();
    auto losses = at::empty({logits.size(0)}, logits.options());
    cpu::CrossEntropyProblem p{};
    p.rows = logits.size(0);
    p.vocab = logits.size(1);
    p.logits_stride = logits.stride(0);
    p.scale = scale;
    p.z_loss = z_loss;
    if (gradient.defined()) p.gradient_stride = gradient.stride(0), p.gradient_is_bf16 = gradient.scalar_type() == at::kBFloat16;
    const auto bind = [](cpu::CrossEntropyProblem& p, const RowTensors& t) {
      p.logits = numbers(t.in[0]);
      p.targets = t.in[1].const_data_ptr<int64_t>();
      p.losses = numbers(t.out[0]);
      p.gradient = address(t.out[1]);
    };
    const TensorList out{losses, gradient};
    run_rows(RowCall<cpu::CrossEntropyProblem>{"cross_entropy", kSymbol, {{logits, labels}, out, {}}, p, bind, 1}, cpu::cross_entropy);
    return losses;
  }
  const auto ignored = targets.lt(0);
  const auto safe = targets.masked_fill(ignored, 0).unsqueeze(1);  // [rows, 1]
  const auto log_sum = logits.logsumexp(1, /*keepdim=*/true);
  auto losses = (log_sum - logits.gather(1, safe)).squeeze(1).masked_fill(ignored, 0);
  if (gradient.defined()) {
    logits.sub_(log_sum).exp_();
    if (z_loss > 0) logits.mul_(1 + 2 * z_loss * log_sum);
    logits.scatter_add_(1, safe, at::full_like(safe, -1, logits.options()));
    logits.mul_(ignored.logical_not().to(logits.scalar_type()).mul_(scale).unsqueeze(1));  // at::where of numbers would round to fp32
    if (!gradient.is_same(logits)) gradient.copy_(logits);
  }
  return losses;
}

at::Tensor cross_entropy_statistics(at::Tensor logits, const at::Tensor& targets, bool want_gradient) {
  auto statistics = at::empty({logits.size(0), 3}, logits.options());
  constexpr const char* kSymbol = "ingot_cross_entropy_part";
  if (is_fused(logits, kSymbol)) {
    const auto labels = targets.contiguous();
    cpu::CrossEntropyPartProblem p{};
    p.rows = logits.size(0);
    p.vocab = logits.size(1);
    p.logits_stride = logits.stride(0);
    p.write = want_gradient;
    const auto bind = [](cpu::CrossEntropyPartProblem& p, const RowTensors& t) {
      p.logits = numbers(t.in[0]);
      p.targets = t.in[1].const_data_ptr<int64_t>();
      p.statistics = numbers(t.out[0]);
    };
    const TensorList out{statistics, want_gradient ? logits : at::Tensor()};
    run_rows(RowCall<cpu::CrossEntropyPartProblem>{"cross_entropy_part", kSymbol, {{logits, labels}, out, {}}, p, bind, 1},
             cpu::cross_entropy_part);
    return statistics;
  }
  const auto elsewhere = targets.lt(0);
  const auto largest = logits.amax(1, /*keepdim=*/true);
  statistics.select(1, 2).copy_(logits.gather(1, targets.masked_fill(elsewhere, 0).unsqueeze(1)).squeeze(1).masked_fill(elsewhere, 0));
  const auto exponentials = want_gradient ? logits.sub_(largest).exp_() : (logits - largest).exp_();
  statistics.select(1, 0).copy_(largest.squeeze(1));
  statistics.select(1, 1).copy_(exponentials.sum(1));
  return statistics;
}

std::pair<at::Tensor, at::Tensor> combine_statistics(const at::Tensor& statistics, int64_t own, double z_loss) {
  const auto largest = statistics.select(2, 0), sums = statistics.select(2, 1);  // [parts, rows]
  const auto top = largest.amax(0);
  const auto shrunk = (largest - top).exp();
  const auto sum = (sums * shrunk).sum(0);
  const auto log_sum = sum.log() + top;
  auto factors = shrunk[own] / sum;
  if (z_loss > 0) factors.mul_(1 + 2 * z_loss * log_sum);
  return {log_sum - statistics.select(2, 2).sum(0), factors};
}

void cross_entropy_gradient(at::Tensor exponentials, const at::Tensor& targets, const at::Tensor& factors, const at::Tensor& ignored,
                            double scale, at::Tensor gradient) {
  const auto elsewhere = targets.lt(0);
  const auto scales = (factors * scale).masked_fill(ignored, 0).unsqueeze(1), at_target = targets.masked_fill(elsewhere, 0).unsqueeze(1);
  // Of the targets, or of index 0 in rows that have theirs elsewhere: subtracted before anything is rounded.
  const auto of_targets =
      (exponentials.gather(1, at_target) * scales).sub_(elsewhere.logical_not().to(exponentials.scalar_type()).mul_(scale).unsqueeze(1));
  if (device::is_gpu(gradient) || gradient.scalar_type() == exponentials.scalar_type()) at::mul_out(gradient, exponentials, scales);
  else gradient.copy_(exponentials.mul_(scales));  // ATen's product would be a third tensor of that size on a CPU
  gradient.scatter_(1, at_target, of_targets.to(gradient.scalar_type()));
}

}  // namespace ingot::kernels
