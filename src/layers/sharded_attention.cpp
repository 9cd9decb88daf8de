#include "layers/sharded_attention.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/attention.h"
#include "layers/attention_spread.h"

namespace ingot::layers {

kernels::AttentionMask AttentionSpread::mask(int64_t first_query, int64_t queries, int64_t first_key, int64_t keys) const {
  kernels::AttentionMask mask{{}, first_query - first_key, window};
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

at::Tensor sharded_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale, int64_t window,
                             const Sequences& sequences) {
  const AttentionSpread spread{.axis = sequences.axis(),
                               .document_start = sequences.document_start(),
                               .batch = q.size(0),
                               .length = q.size(2),
                               .window = window,
                               .scale = scale,
                               .device = q.device()};
  switch (spread.axis.method) {
    case SequenceAxis::Method::ring: return ring_attention(q, k, v, spread);
    case SequenceAxis::Method::allgather: return allgather_attention(q, k, v, spread);
    case SequenceAxis::Method::ulysses: return ulysses_attention(q, k, v, spread);
  }
  return {};
}

void check_heads(const SequenceAxis& axis, int64_t heads, int64_t kv_heads) {
  if (!axis.is_on() || axis.method != SequenceAxis::Method::ulysses) return;
  if (heads % axis.size == 0 && (kv_heads % axis.size == 0 || axis.size % kv_heads == 0)) return;
  throw base::ConfigError(
      "parallel.context_method = ulysses: {} ranks cannot share {} heads with {} kv heads (of this tensor rank); heads must be a "
      "multiple of the ranks, and kv heads a multiple or a divisor. context_method = ring or allgather would work",
      axis.size, heads, kv_heads);
}

}  // namespace ingot::layers
