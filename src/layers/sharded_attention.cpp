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

void describe_sharded(const SequenceAxis& axis, const Workload& work, Operation& op) {
  const int64_t row = work.seq() * axis.size, length = work.seq() / axis.chunks();
  op.seq = row;  // keys that come to be seen
  op.flops = attention_cost(op.batch, row, op.window, op.heads, op.kv_heads, op.head_dim, op.element_bytes).flops / axis.size;
  const int64_t queries = work.tokens() * op.heads * op.head_dim, keys = 2 * work.tokens() * op.kv_heads * op.head_dim;  // k and v
  const int64_t e = op.element_bytes, w = work.wide_bytes(), narrows = e < w ? 1 : 0;
  const auto scratch = [&](int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads) {
    return kernels::attention_scratch(batch, seq, heads, kv_heads, op.head_dim);
  };
  switch (axis.method) {
    case SequenceAxis::Method::ring: {
      const auto kernel = scratch(op.batch, length, op.heads, op.kv_heads);
      // Those at hand and those that arrive; partial results of one chunk, and the sum where it is wider than the result.
      op.forward_scratch_bytes = kernel.forward_bytes + 2 * keys * e + queries * e / axis.chunks() + narrows * queries * w;
      // The same; gradients made, leaving and arriving; those of the queries, and what the kernel returns.
      op.backward_scratch_bytes =
          kernel.backward_bytes + 2 * keys * e + 3 * keys * w + narrows * (queries + keys) * w + (queries + keys) * e / axis.chunks();
      break;
    }
    case SequenceAxis::Method::allgather: {
      const int64_t groups = allgather_groups(op.kv_heads);
      const auto kernel = scratch(op.batch, row, op.heads / groups, op.kv_heads / groups);
      const int64_t all = keys * axis.size / groups;  // elements of one group's keys and values of whole rows
      op.forward_scratch_bytes = kernel.forward_bytes + 3 * all * e + queries * e / groups / axis.chunks();
      op.backward_scratch_bytes = kernel.backward_bytes + 3 * all * e + all * w + all * e + keys * e + queries * e / groups;
      break;
    }
    case SequenceAxis::Method::ulysses: {
      const int64_t heads = op.heads / axis.size, kv_heads = std::max<int64_t>(1, op.kv_heads / axis.size);
      const auto kernel = scratch(op.batch, row, heads, kv_heads);
      const int64_t packed = op.batch * row * (heads + 2 * kv_heads) * op.head_dim;
      op.forward_scratch_bytes = std::max(2 * packed * e, kernel.forward_bytes + packed * e + 2 * queries * e);
      op.backward_scratch_bytes = kernel.backward_bytes + 3 * packed * e;
      break;
    }
  }
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
