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
    at::Tensor weights;  // [count, 1] of an objective that has some
    const int64_t count = rows.size(0), chunk = head_chunk_rows(count, weight_value.size(0), device::is_gpu(hidden));
    // Losses of some rows, and if wanted the gradient of their logits in the dtype that matmuls take.
    const auto run_chunk = [&](int64_t from, int64_t size, double factor, bool wants) {
      auto logits = kernels::matmul(rows.narrow(0, from, size), weight_value.t(), wide);  // [size, vocab]
      const auto part_labels = labels.narrow(0, from, size);
      const auto slope = cap_logits(logits, rule.logit_cap, wants);
      const bool stays_wide = wide == rows.scalar_type() || slope.defined() || weights.defined();  // or is multiplied before it is rounded
      auto gradient = !wants ? at::Tensor() : stays_wide ? logits : at::empty_like(logits, rows.options());
      const auto losses = cross_entropy ? cross_entropy(logits, part_labels, factor, gradient, rule.z_loss)
                                        : kernels::cross_entropy(logits, part_labels, factor, gradient, rule.z_loss);
      if (wants && slope.defined()) gradient.mul_(slope);
      if (wants && weights.defined()) gradient.mul_(weights.narrow(0, from, size));
      return std::pair{losses, wants ? gradient.to(rows.scalar_type()) : gradient};
    };
    const auto for_each_chunk = [&](const auto& visit) {
      for (int64_t from = 0; from < count; from += chunk) visit(from, std::min(chunk, count - from));
    };
    auto total = at::zeros({}, rows.options().dtype(wide));
    if (rule.weigh) {
      const auto losses = at::empty({count}, total.options());
      for_each_chunk([&](int64_t from, int64_t size) { losses.narrow(0, from, size).copy_(run_chunk(from, size, 1, false).first); });
      const auto objective = rule.weigh(losses.view(targets.sizes()));
      if (!want_gradient) return objective.value * scale;
      total = objective.value, weights = objective.weights.to(wide).reshape({count, 1});
    }
    at::Tensor grad_hidden, buffer;  // buffer: of a weight that is trained
    bool overwrite = false;
    if (want_gradient) {
      grad_hidden = at::empty_like(rows);
      if (weight->is_trained()) buffer = weight->gradient_buffer(overwrite);
    }
    for_each_chunk([&](int64_t from, int64_t size) {
      const auto [losses, gradient] = run_chunk(from, size, scale, want_gradient);
      if (rule.losses.defined()) rule.losses.view({-1}).narrow(0, from, size).copy_(losses);
      if (!weights.defined()) total += losses.sum();
      if (!want_gradient) return;
      kernels::matmul_into(grad_hidden.narrow(0, from, size), gradient, weight_value, /*overwrite=*/true);
      if (buffer.defined()) kernels::matmul_into(buffer, gradient.t(), rows.narrow(0, from, size), overwrite && from == 0);
    });
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
