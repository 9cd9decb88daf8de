#include "layers/cca_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "layers/linear.h"
#include "layers/sharded_attention.h"
#include "layers/tensor_sequence/decoding.h"
#include "layers/tensor_sequence/folded_attention.h"

namespace ingot::layers {
namespace {

// The last two latents and the last delayed value of everything seen so far.
kernels::CcaTail next_tail(const at::Tensor& packed, const kernels::CcaShape& shape, const kernels::CcaTail& before) {
  const int64_t seq = packed.size(1);
  const auto wide = packed.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  auto latent = packed.narrow(2, 0, shape.latent()).to(wide);
  if (seq < 2) {
    const auto older = before.latent.defined() ? before.latent.narrow(1, 1, 1) : at::zeros_like(latent);
    latent = at::cat({older, latent}, 1);
  }
  return {latent.narrow(1, latent.size(1) - 2, 2).contiguous(),
          packed.select(1, seq - 1).narrow(1, shape.latent() + shape.current_values(), shape.delayed_values()).to(wide).contiguous()};
}

// cca_mix where the tokens before a chunk are another rank's: q, k, v, each [batch, chunks, chunk length, its heads, head_dim].
std::array<at::Tensor, 3> mixed_over_ranks(const at::Tensor& packed, const SequenceAxis& axis, const kernels::CcaShape& shape,
                                           const kernels::CcaWeights& weights, const kernels::RotaryTable& table,
                                           const at::Tensor& is_start) {
  const auto [q, k, v] = kernels::cca_mix(with_halo(packed, axis), shape, weights, table, is_start, {});
  const auto body = [&](const at::Tensor& t) {
    return t.narrow(1, kHalo, t.size(1) - kHalo).unflatten(0, {packed.size(0), axis.chunks()});
  };
  return {body(q), body(k), body(v)};
}

}  // namespace

at::Tensor CcaAttention::operator()(const at::Tensor& x, Sequences& sequences, CcaCache* cache) const {
  const auto packed = linear(x, {q, k, current_value, delayed_value});
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  const auto weights = mixing();
  if (const auto& axis = sequences.axis(); axis.is_on()) {
    auto& haloed = sequences.haloed();
    const auto [queries, keys, values] =
        mixed_over_ranks(packed, axis, shape, weights, haloed.rotary(rotary, x.scalar_type()), haloed.is_start());
    return linear(sharded_attention(queries, keys, values, scale, window, sequences).flatten(2), {o});
  }
  const kernels::CcaTail tail = cache ? cache->tail : kernels::CcaTail{};
  const auto [queries, keys, values] =
      kernels::cca_mix(packed, shape, weights, sequences.rotary(rotary, x.scalar_type()), sequences.is_start(), tail);
  if (cache) cache->tail = next_tail(packed, shape, tail);
  const auto mixed = attention(queries, keys, values, scale, window, sequences, cache ? &cache->key_values : nullptr);
  return linear(mixed, {o});
}

kernels::CcaWeights CcaAttention::mixing() const {
  return {depthwise_weight->value, depthwise_bias->value, grouped_weight->value, grouped_bias->value, temperature->value};
}

kernels::CcaShape CcaAttention::shape_of(int owner, int ranks) const {
  // The first half of all value channels comes from the token itself: of a rank's value heads all, some or none.
  const auto values = tensor::share_of(shape.values(), owner, ranks);
  const int64_t half = shape.values() / 2;
  return {shape.heads / ranks, shape.kv_heads / ranks, shape.head_dim, std::min(values.end, half) - std::min(values.begin, half)};
}

at::Tensor CcaAttention::folded(const at::Tensor& x, Sequences& sequences, const TensorSequenceAxis& axis, CcaCache* cache) const {
  const int64_t d = shape.head_dim;
  const auto shape_of = [all = *this, ranks = axis.size](int owner) { return all.shape_of(owner, ranks); };
  FoldedAttention layer{
      .heads = shape.heads,
      .kv_heads = shape.kv_heads,
      .head_dim = d,
      .window = window,
      .scale = 1 / std::sqrt(static_cast<double>(d)),
      .weights = {q, k, current_value, delayed_value, depthwise_weight, depthwise_bias, grouped_weight, grouped_bias, temperature},
      .out = o,
      .cache = cache ? &cache->key_values : nullptr};
  layer.shapes = [shape_of, weights = layer.weights](int owner) {
    std::vector<tensor::Shape> shapes;
    for (const auto* weight : weights) shapes.push_back(weight->value.sizes().vec());
    shapes[2][0] = shape_of(owner).current_values();
    shapes[3][0] = shape_of(owner).delayed_values();
    return shapes;
  };
  auto& haloed = sequences.haloed();
  layer.project = [shape_of, tokens = sequences.axis(), table = haloed.rotary(rotary, x.scalar_type()), is_start = haloed.is_start()](
                      const at::Tensor& in, const FoldedAttention::Visit& visit) {
    const auto& w = visit.parts[0];
    const kernels::CcaWeights weights{w[4]->value, w[5]->value, w[6]->value, w[7]->value, w[8]->value};
    return mixed_over_ranks(linear(in, {w[0], w[1], w[2], w[3]}), tokens, shape_of(visit.first), weights, table, is_start);
  };
  const auto out = folded_attention(x, layer, sequences, axis);
  if (cache) {
    // What the next token needs of the last two lies at the end of the row's last chunk.
    const auto& tokens = sequences.axis();
    const int owner = tokens.owner(tokens.all_chunks() - 1);
    const auto last =
        owner == axis.rank ? x.narrow(1, x.size(1) - kHalo, kHalo).contiguous() : at::empty({x.size(0), kHalo, x.size(2)}, x.options());
    axis.group->broadcast(last, owner);
    cache->tail = next_tail(linear(last, {q, k, current_value, delayed_value}), shape_of(axis.rank), {});
  }
  return out;
}

at::Tensor CcaAttention::decoded(const at::Tensor& x, Sequences& sequences, const TensorSequenceAxis& axis, CcaCache& cache) const {
  const auto own = shape_of(axis.rank, axis.size);
  const auto packed = linear(x, {q, k, current_value, delayed_value});
  const auto [own_queries, own_keys, own_values] =
      kernels::cca_mix(packed, own, mixing(), sequences.rotary(rotary, x.scalar_type()), {}, cache.tail);
  cache.tail = next_tail(packed, own, cache.tail);
  const auto all = gather_channels({own_queries.flatten(2), own_keys.flatten(2), own_values.flatten(2)}, axis);
  const auto by_head = [&](const at::Tensor& t) { return t.unflatten(2, {-1, shape.head_dim}); };
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  return linear(
      attend_to_spread_cache(by_head(all[0]), by_head(all[1]), by_head(all[2]), scale, window, sequences.offset(), cache.key_values, axis),
      {o});
}

}  // namespace ingot::layers
