#include "layers/cca_attention.h"

#include <cmath>

#include "layers/linear.h"
#include "layers/sharded_attention.h"

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

}  // namespace

at::Tensor CcaAttention::operator()(const at::Tensor& x, Sequences& sequences, CcaCache* cache) const {
  const auto packed = linear(x, {q, k, current_value, delayed_value});
  const kernels::CcaWeights weights{depthwise_weight->value, depthwise_bias->value, grouped_weight->value, grouped_bias->value,
                                    temperature->value};
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  if (const auto& axis = sequences.axis(); axis.is_on()) {
    auto& haloed = sequences.haloed();
    const auto [q_halo, k_halo, v_halo] =
        kernels::cca_mix(with_halo(packed, axis), shape, weights, haloed.rotary(rotary, x.scalar_type()), haloed.is_start(), {});
    const auto body = [&](const at::Tensor& t) {  // [batch, chunks, chunk length, heads, head_dim]
      return t.narrow(1, kHalo, t.size(1) - kHalo).unflatten(0, {x.size(0), axis.chunks()});
    };
    return linear(sharded_attention(body(q_halo), body(k_halo), body(v_halo), scale, window, sequences).flatten(2), {o});
  }
  const kernels::CcaTail tail = cache ? cache->tail : kernels::CcaTail{};
  const auto [queries, keys, values] =
      kernels::cca_mix(packed, shape, weights, sequences.rotary(rotary, x.scalar_type()), sequences.is_start(), tail);
  if (cache) cache->tail = next_tail(packed, shape, tail);
  const auto mixed = attention(queries, keys, values, scale, window, sequences, cache ? &cache->key_values : nullptr);
  return linear(mixed, {o});
}

}  // namespace ingot::layers
