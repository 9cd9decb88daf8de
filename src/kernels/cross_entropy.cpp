#include "kernels/cross_entropy.h"

namespace ingot::kernels {

at::Tensor cross_entropy_in_place(at::Tensor logits, const at::Tensor& targets, double scale, bool want_gradient) {
  const auto ignored = targets.eq(kIgnoredTarget);
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
