#include "layers/head.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/work_scope.h"
#include "device/device.h"
#include "kernels/cross_entropy.h"
#include "kernels/matmul.h"
#include "layers/autograd.h"

namespace ingot::layers {
namespace {

constexpr int64_t kChunkBytes = int64_t{16} << 20, kGpuChunkBytes = int64_t{1} << 30, kLeastRows = 256;

at::ScalarType logits_type(const at::Tensor& hidden) { return hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

struct HeadLossFunction : Function<HeadLossFunction, WorkKind::head> {
  static at::Tensor forward(Context& context, const at::Tensor& hidden, const at::Tensor& weight_value, Parameter* weight,
                            const at::Tensor& targets, double scale, bool want_gradient, const HeadRule& rule,
                            const CrossEntropy& cross_entropy) {
    const auto rows = as_rows(hidden);
    const auto labels = targets.reshape(-1);
    const auto wide = logits_type(hidden);
    const int64_t count = rows.size(0), vocab = weight_value.size(0);
    const int64_t chunk = head_chunk_rows(count, vocab, device::is_gpu(hidden));
    auto total = at::zeros({}, rows.options().dtype(wide));
    at::Tensor grad_hidden, buffer;
    bool overwrite = false;
    if (want_gradient) {
      grad_hidden = at::empty_like(rows);
      buffer = weight->gradient_buffer(overwrite);
    }
    for (int64_t from = 0; from < count; from += chunk) {
      const int64_t size = std::min(chunk, count - from);
      const auto part = rows.narrow(0, from, size);
      auto logits = kernels::matmul(part, weight_value.t(), wide);  // [size, vocab]
      const auto part_labels = labels.narrow(0, from, size);
      const auto slope = cap_logits(logits, rule.logit_cap, want_gradient);
      total += (cross_entropy ? cross_entropy(logits, part_labels, scale, want_gradient, rule.z_loss)
                              : kernels::cross_entropy_in_place(logits, part_labels, scale, want_gradient, rule.z_loss))
                   .sum();
      if (!want_gradient) continue;
      if (slope.defined()) logits.mul_(slope);
      const auto narrow = logits.to(rows.scalar_type());
      kernels::matmul_into(grad_hidden.narrow(0, from, size), narrow, weight_value, /*overwrite=*/true);
      kernels::matmul_into(buffer, narrow.t(), part, overwrite && from == 0);
    }
    if (want_gradient) context.save({grad_hidden.view(hidden.sizes())});
    return total * scale;
  }

  static TensorList backward(Context& context, const TensorList&) { return {context.saved()[0]}; }
};

}  // namespace

at::Tensor cap_logits(at::Tensor logits, double cap, bool want_gradient) {
  if (cap == 0) return {};
  logits.mul_(1 / cap).tanh_();
  auto slope = want_gradient ? 1 - logits.square() : at::Tensor();
  logits.mul_(cap);
  return slope;
}

int64_t head_chunk_rows(int64_t rows, int64_t vocab, bool on_gpu) {
  return std::clamp<int64_t>((on_gpu ? kGpuChunkBytes : kChunkBytes) / (4 * vocab), kLeastRows, std::max(kLeastRows, rows));
}

at::Tensor logits_of(const at::Tensor& hidden, const Parameter& weight) {
  const at::NoGradGuard no_grad;
  auto sizes = hidden.sizes().vec();
  sizes.back() = weight.value.size(0);
  return kernels::matmul(as_rows(hidden), weight.value.t(), logits_type(hidden)).view(sizes);
}

at::Tensor head_loss(const at::Tensor& hidden, Parameter& weight, const at::Tensor& targets, double scale, const HeadRule& rule,
                     const CrossEntropy& cross_entropy) {
  const base::WorkScope scope("head_loss", base::WorkKind::head);
  return HeadLossFunction::apply(hidden, weight.value, &weight, targets, scale, at::GradMode::is_enabled(), rule, cross_entropy);
}

}  // namespace ingot::layers
