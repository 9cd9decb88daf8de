#include "layers/softmax_attention.h"

#include <cmath>

#include "layers/linear.h"

namespace ingot::layers {

kernels::QkNorm SoftmaxAttention::norm_of(const at::Tensor& q_weight, const at::Tensor& k_weight) const {
  if (norm_adds_one) return {q_weight + 1, k_weight + 1, norm_eps};
  return {q_weight, k_weight, norm_eps};
}

at::Tensor SoftmaxAttention::operator()(const at::Tensor& x, Sequences& sequences, const Caches<AttentionCache>& caches) const {
  const auto packed = linear(x, {q, k, v}, biases());
  const auto weight_of = [&](const Parameter& norm) { return repeated ? repeated(norm.value) : norm.value; };
  kernels::QkNorm norm;
  if (q_norm) norm = norm_of(weight_of(*q_norm), weight_of(*k_norm));
  const auto [queries, keys, values] =
      kernels::split_norm_and_rotate(packed, heads, kv_heads, head_dim, norm, sequences.rotary(rotary, x.scalar_type()));
  const auto mixed = attention(queries, keys, values, of_all_ranks().rule, window, sequences, caches.members(&AttentionCache::key_values),
                               sinks ? sinks->value : at::Tensor(), largest_scores);
  if (gate) return linear(mixed * at::sigmoid(linear(x, {gate})), {o});
  return linear(mixed, {o});
}

AttentionLayer::Heads SoftmaxAttention::of_all_ranks() const {
  return {heads, kv_heads, head_dim, window, {scale > 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim)), score_cap}};
}

ShardOfWeights SoftmaxAttention::projections() const {
  ShardOfWeights all = {q, k, v};
  if (q_bias) all.insert(all.end(), {q_bias, k_bias, v_bias});
  // Each owner's copy travels with its heads and gets their gradients.
  if (q_norm) all.insert(all.end(), {q_norm, k_norm});
  return all;
}

AttentionLayer::Projection SoftmaxAttention::projection(Sequences& sequences, at::ScalarType dtype, int /*ranks*/) const {
  const int64_t chunks = sequences.order().chunks();
  const std::vector<int64_t> by_chunk = {chunks, sequences.seq() / chunks};
  const size_t norms = q_bias ? 6 : 3;  // where in projections() they begin
  return [this, norms, by_chunk, table = sequences.rotary(rotary, dtype)](const at::Tensor& in,
                                                                          const Visit& visit) -> std::array<at::Tensor, 3> {
    // All queries' parts side by side, then all keys', then all values'.
    std::vector<Parameter*> weights, some_biases;
    for (size_t kind = 0; kind < norms; ++kind)
      for (const auto& shard : visit.shards) (kind < 3 ? weights : some_biases).push_back(shard[kind]);
    kernels::QkNorm norm;
    if (q_norm) norm = norm_of(visit.shards[0][norms]->value, visit.shards[0][norms + 1]->value);
    const auto [queries, keys, values] =
        kernels::split_norm_and_rotate(linear(in, weights, some_biases), visit.heads, visit.kv_heads, head_dim, norm, table);
    return {queries.unflatten(1, by_chunk), keys.unflatten(1, by_chunk), values.unflatten(1, by_chunk)};
  };
}

std::array<at::Tensor, 3> SoftmaxAttention::project_new(const at::Tensor& x, Sequences& sequences, const Caches<AttentionCache>& /*caches*/,
                                                        int /*rank*/, int /*ranks*/, const Gather& gather) const {
  const auto own = linear(x, {q, k, v}, biases());
  // Rows of a rank may be a part of a kv head: rotated when whole.
  const auto packed = device::cat(gather(own.split_with_sizes({q->value.size(0), k->value.size(0), v->value.size(0)}, -1)), -1);
  kernels::QkNorm norm;
  if (q_norm) norm = norm_of(q_norm->value, k_norm->value);
  const auto [queries, keys, values] =
      kernels::split_norm_and_rotate(packed, heads, kv_heads, head_dim, norm, sequences.rotary(rotary, x.scalar_type()));
  return {queries, keys, values};
}

}  // namespace ingot::layers
