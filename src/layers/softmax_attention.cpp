#include "layers/softmax_attention.h"

#include <cmath>

#include "kernels/norm.h"
#include "layers/linear.h"
#include "layers/tensor_sequence/decoding.h"
#include "layers/tensor_sequence/folded_attention.h"

namespace ingot::layers {

at::Tensor SoftmaxAttention::normed(const at::Tensor& packed, int64_t own_heads, int64_t own_kv_heads, const at::Tensor& q_weight,
                                    const at::Tensor& k_weight) const {
  const auto parts = packed.split_with_sizes({own_heads * head_dim, own_kv_heads * head_dim, own_kv_heads * head_dim}, -1);
  const auto norm = [&](const at::Tensor& x, const at::Tensor& weight) {
    return kernels::rms_norm(x.unflatten(-1, {-1, weight.size(0)}), weight, norm_eps, x.scalar_type()).flatten(-2);
  };
  return at::cat({norm(parts[0], q_weight), norm(parts[1], k_weight), parts[2]}, -1);
}

// A rank sees its own heads' part of the gradient: summed over the ranks on the way back.
at::Tensor SoftmaxAttention::norm_weight(const Parameter& norm) const {
  return repeats_norms ? repeats_norms->enter(norm.value.view({1, 1, -1}), 1, 1).flatten() : norm.value;
}

at::Tensor SoftmaxAttention::operator()(const at::Tensor& x, Sequences& sequences, KeyValueCache* cache) const {
  const bool biased = q_bias != nullptr;
  auto packed = linear(x, {q, k, v}, biased ? std::vector{q_bias, k_bias, v_bias} : std::vector<Parameter*>{});
  if (q_norm) packed = normed(packed, heads, kv_heads, norm_weight(*q_norm), norm_weight(*k_norm));
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
  // Each owner's copy travels with its heads and gets their gradients.
  const size_t norms = layer.weights.size();
  if (q_norm) layer.weights.insert(layer.weights.end(), {q_norm, k_norm});
  const std::vector<int64_t> by_chunk = {sequences.axis().chunks(), x.size(1) / sequences.axis().chunks()};
  layer.project = [all = *this, norms, by_chunk, d = head_dim, table = sequences.rotary(rotary, x.scalar_type())](
                      const at::Tensor& in, const FoldedAttention::Visit& visit) -> std::array<at::Tensor, 3> {
    // All queries' parts side by side, then all keys', then all values'.
    std::vector<Parameter*> weights, biases;
    for (size_t kind = 0; kind < norms; ++kind)
      for (const auto& part : visit.parts) (kind < 3 ? weights : biases).push_back(part[kind]);
    auto packed = linear(in, weights, biases);
    if (all.q_norm) {
      const auto& first = visit.parts[0];
      packed = all.normed(packed, visit.heads, visit.kv_heads, first[norms]->value, first[norms + 1]->value);
    }
    const auto [queries, keys, values] = kernels::split_and_rotate(packed, visit.heads, visit.kv_heads, d, table);
    return {queries.unflatten(1, by_chunk), keys.unflatten(1, by_chunk), values.unflatten(1, by_chunk)};
  };
  return folded_attention(x, layer, sequences, axis);
}

at::Tensor SoftmaxAttention::decoded(const at::Tensor& x, Sequences& sequences, const TensorSequenceAxis& axis,
                                     KeyValueCache& cache) const {
  const auto own = linear(x, {q, k, v}, q_bias ? std::vector{q_bias, k_bias, v_bias} : std::vector<Parameter*>{});
  // Rows of a rank may be a part of a kv head: rotated when whole.
  const auto all = gather_channels(own.split_with_sizes({q->value.size(0), k->value.size(0), v->value.size(0)}, -1), axis);
  auto packed = at::cat(all, -1);
  if (q_norm) packed = normed(packed, heads, kv_heads, q_norm->value, k_norm->value);
  const auto [queries, keys, values] =
      kernels::split_and_rotate(packed, heads, kv_heads, head_dim, sequences.rotary(rotary, x.scalar_type()));
  const double scale = 1 / std::sqrt(static_cast<double>(head_dim));
  return linear(attend_to_spread_cache(queries, keys, values, scale, window, sequences.offset(), cache, axis), {o});
}

}  // namespace ingot::layers
