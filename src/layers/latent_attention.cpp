#include "layers/latent_attention.h"

#include "base/work_scope.h"
#include "kernels/rope.h"
#include "layers/attention.h"
#include "layers/autograd.h"
#include "layers/linear.h"

namespace ingot::layers {
namespace {

// Keys [batch, seq, heads, rope | plain] and values [batch, seq, heads, value_dim] of what the latent made, [batch, seq, heads, plain |
// value_dim], and of the rotated channels that all heads share [batch, seq, 1, rope]. Saves nothing; one gradient is written by parts,
// where autograd would add up two that are padded with zeros.
struct KeysAndValues : Function<KeysAndValues, WorkKind::attention> {
  static TensorList forward(Context& context, const at::Tensor& made, const at::Tensor& rotated, int64_t plain) {
    const int64_t rope = rotated.size(-1), value_dim = made.size(-1) - plain;
    auto keys = at::empty({made.size(0), made.size(1), made.size(2), rope + plain}, made.options());
    keys.narrow(-1, 0, rope).copy_(rotated.expand({-1, -1, made.size(2), -1}));
    keys.narrow(-1, rope, plain).copy_(made.narrow(-1, 0, plain));
    context.keep(rope);
    return {keys, made.narrow(-1, plain, value_dim).contiguous()};
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto &keys = grads[0], &values = grads[1];
    const int64_t rope = context.kept<int64_t>(), plain = keys.size(-1) - rope;
    auto made = at::empty({keys.size(0), keys.size(1), keys.size(2), plain + values.size(-1)}, keys.options());
    made.narrow(-1, 0, plain).copy_(keys.narrow(-1, rope, plain));
    made.narrow(-1, plain, values.size(-1)).copy_(values);
    return {made, keys.narrow(-1, 0, rope).sum(2, true)};
  }
};

at::Tensor rotated_key(const at::Tensor& key, const kernels::RotaryTable& table) {
  const base::WorkScope scope("rotate", base::WorkKind::attention);
  return kernels::rotate(key.unsqueeze(2), table);
}

}  // namespace

at::Tensor LatentAttention::operator()(const at::Tensor& query, const at::Tensor& latent, const at::Tensor& key, Sequences& sequences,
                                       const Caches<AttentionCache>& caches) const {
  const int64_t plain = head_dim - rope_dim;
  const auto& table = sequences.rotary(rotary, query.scalar_type());
  const auto queries = std::get<0>(kernels::split_and_rotate(linear(query, {q}), heads, 0, head_dim, table));
  const auto made = linear(latent, {kv}).unflatten(-1, {heads, plain + value_dim});
  const auto parts = KeysAndValues::apply(made, rotated_key(key, table), plain);
  return linear(
      attention(queries, parts[0], parts[1], scale, window, sequences, caches.members(&AttentionCache::key_values), {}, largest_scores),
      {o});
}

}  // namespace ingot::layers
