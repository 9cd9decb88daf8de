#include "layers/attention_sinks.h"

namespace ingot::layers {

void see_sinks(const at::Tensor& out, const at::Tensor& log_sum_exp, const at::Tensor& sinks) {
  const auto with_sink = at::logaddexp(log_sum_exp, sinks.view({1, -1, 1}).expand_as(log_sum_exp));
  out.mul_((log_sum_exp - with_sink).exp().transpose(1, 2).unsqueeze(-1));
  log_sum_exp.copy_(with_sink);
}

at::Tensor gradient_of_sinks(const at::Tensor& grad_out, const at::Tensor& out, const at::Tensor& log_sum_exp, const at::Tensor& sinks) {
  // A sink has no value: its score's gradient is -P (grad_out . out), P being its weight.
  const auto weight = (sinks.view({1, -1, 1}) - log_sum_exp).exp();  // [batch, heads, seq]
  const auto mean = (grad_out.to(weight.scalar_type()) * out).sum(-1).transpose(1, 2);
  return (weight * mean).sum(at::IntArrayRef({0, 2})).neg_();
}

}  // namespace ingot::layers
