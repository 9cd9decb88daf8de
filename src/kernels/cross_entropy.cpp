#include "kernels/cross_entropy.h"

#include "kernels/cpu/rows_parallel.h"

namespace ingot::kernels {

at::Tensor cross_entropy_in_place(at::Tensor logits, const at::Tensor& targets, double scale, bool want_gradient) {
  if (logits.is_cpu() && logits.scalar_type() == at::kFloat && logits.stride(1) == 1) {
    const auto labels = targets.contiguous();
    auto losses = at::empty({logits.size(0)}, at::kFloat);
    const cpu::CrossEntropyProblem p{
        logits.size(0), logits.size(1),           logits.stride(0), logits.data_ptr<float>(), labels.const_data_ptr<int64_t>(),
        scale,          losses.data_ptr<float>(), want_gradient};
    cpu::parallel_rows(p.rows, 1, [&](int64_t begin, int64_t end) { cpu::row_kernels().cross_entropy(p, begin, end); });
    return losses;
  }
  const auto ignored = targets.lt(0);
  const auto safe = targets.masked_fill(ignored, 0).unsqueeze(1);  // [rows, 1]
  const auto log_sum = logits.logsumexp(1, /*keepdim=*/true);
  auto losses = (log_sum - logits.gather(1, safe)).squeeze(1).masked_fill(ignored, 0);
  if (want_gradient) {
    logits.sub_(log_sum).exp_();
    logits.scatter_add_(1, safe, at::full_like(safe, -1, logits.options()));
    logits.mul_(at::where(ignored, 0.0, scale).to(logits.scalar_type()).unsqueeze(1));
  }
  return losses;
}

}  // namespace ingot::kernels
