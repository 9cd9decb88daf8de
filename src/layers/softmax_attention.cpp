#include "layers/softmax_attention.h"

#include <cmath>

#include "layers/linear.h"
#include "layers/tensor_sequence/decoding.h"
#include "layers/tensor_sequence/folded_attention.h"

namespace ingot::layers {

at::Tensor SoftmaxAttention::operator()(const at::Tensor& x, Sequences& sequences, KeyValueCache* cache) const {
  const bool biased = q_bias != nullptr;
  const auto packed = linear(x, {q, k, v}, biased ? std::vector{q_bias, k_bias, v_bias} : std::vector<Parameter*>{});
  const auto [queries, keys, values] =
      kernels::split_and_rotate(packed, heads, kv_heads, head_dim, sequences.rotary(rotary, x.scalar_type()));
  const auto mixed = attention(queries, keys, values, 1 / std::sqrt(static_cast<double>(head_dim)), window, sequences, cache);
  return linear(mixed, {o});
}

at::Tensor SoftmaxAttention::folded(const at::Tensor& x, Sequences& sequences, const TensorSequenceAxis& axis, KeyValueCache* cache) const {
  FoldedAttention layer{.heads = heads,
                        .kv_heads = kv_heads,
                        .head_dim = head_dim,
                        .window = window,
                        .scale = 1 / std::sqrt(static_cast<double>(head_dim)),
                        .weights = {q, k, v},
                        .out = o,
                        .cache = cache};
  if (q_bias) layer.weights.insert(layer.weights.end(), {q_bias, k_bias, v_bias});
  const std::vector<int64_t> by_chunk = {sequences.axis().chunks(), x.size(1) / sequences.axis().chunks()};
  layer.project = [by_chunk, d = head_dim, table = sequences.rotary(rotary, x.scalar_type())](
                      const at::Tensor& in, const FoldedAttention::Visit& visit) -> std::array<at::Tensor, 3> {
    // All queries' parts side by side, then all keys', then all values'.
    std::vector<Parameter*> weights, biases;
    for (size_t kind = 0; kind < visit.parts[0].size(); ++kind)
      for (const auto& part : visit.parts) (kind < 3 ? weights : biases).push_back(part[kind]);
    const auto [queries, keys, values] = kernels::split_and_rotate(linear(in, weights, biases), visit.heads, visit.kv_heads, d, table);
    return {queries.unflatten(1, by_chunk), keys.unflatten(1, by_chunk), values.unflatten(1, by_chunk)};
  };
  return folded_attention(x, layer, sequences, axis);
}

at::Tensor SoftmaxAttention::decoded(const at::Tensor& x, Sequences& sequences, const TensorSequenceAxis& axis,
                                     KeyValueCache& cache) const {
  const auto own = linear(x, {q, k, v}, q_bias ? std::vector{q_bias, k_bias, v_bias} : std::vector<Parameter*>{});
  // Rows of a rank may be a part of a kv head: rotated when whole.
  const auto all = gather_channels(own.split_with_sizes({q->value.size(0), k->value.size(0), v->value.size(0)}, -1), axis);
  const auto [queries, keys, values] =
      kernels::split_and_rotate(at::cat(all, -1), heads, kv_heads, head_dim, sequences.rotary(rotary, x.scalar_type()));
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
  return linear(attend_to_spread_cache(queries, keys, values, scale, window, sequences.offset(), cache, axis), {o});
}

}  // namespace ingot::layers
