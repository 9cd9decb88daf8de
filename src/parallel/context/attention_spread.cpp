#include "parallel/context/attention_spread.h"

#include "layers/attention_sinks.h"
#include "layers/sequences.h"

namespace ingot::parallel {

AttentionSpread::AttentionSpread(const ContextAxis& over, const layers::Sequences& sequences, const at::Tensor& x, int64_t chunk_length,
                                 const kernels::ScoreRule& score_rule, int64_t seen)
    : axis(over),
      document_start(sequences.document_start()),
      batch(x.size(0)),
      length(chunk_length),
      window(seen),
      rule(score_rule),
      device(x.device()) {}

kernels::AttentionMask AttentionSpread::mask(int64_t first_query, int64_t queries, int64_t first_key, int64_t keys) const {
  kernels::AttentionMask mask{{}, first_query - first_key, window, document_start.defined()};
  if (!document_start.defined() && window == 0) return mask;
  at::Tensor from;
  if (document_start.defined()) from = document_start.narrow(1, first_query, queries);
  if (window > 0) {
    const auto options = at::TensorOptions().dtype(at::kInt).device(document_start.defined() ? document_start.device() : device);
    const auto edge = at::arange(first_query + 1 - window, first_query + queries + 1 - window, options).unsqueeze(0);
    from = from.defined() ? at::maximum(from, edge) : edge.expand({batch, queries});
  }
  mask.visible_from = (from - first_key).clamp(0, keys).contiguous();
  return mask;
}

void see_sinks(const at::Tensor& out, const at::Tensor& log_sum_exp, const at::Tensor& sinks) {
  for (int64_t i = 0; sinks.defined() && i < out.size(1); ++i) layers::see_sinks(out.select(1, i), log_sum_exp[i], sinks);
}

at::Tensor gradient_of_sinks(const at::Tensor& grad_out, const at::Tensor& out, const at::Tensor& log_sum_exp, const at::Tensor& sinks) {
  if (!sinks.defined()) return {};
  auto sum = at::zeros_like(sinks);
  for (int64_t i = 0; i < out.size(1); ++i)
    sum.add_(layers::gradient_of_sinks(grad_out.select(1, i), out.select(1, i), log_sum_exp[i], sinks));
  return sum;
}

}  // namespace ingot::parallel
