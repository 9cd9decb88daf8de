#include "layers/latent_attention.h"

#include "base/work_scope.h"
#include "kernels/rope.h"
#include "layers/attention.h"
#include "layers/linear.h"

namespace ingot::layers {

at::Tensor LatentAttention::operator()(const at::Tensor& query, const at::Tensor& latent, const at::Tensor& key, Sequences& sequences,
                                       AttentionCache* cache) const {
  const int64_t plain = head_dim - rope_dim;
  const auto& table = sequences.rotary(rotary, query.scalar_type());
  const auto queries = std::get<0>(kernels::split_and_rotate(linear(query, {q}), heads, 0, head_dim, table));
  const auto made = linear(latent, {kv}).unflatten(-1, {heads, plain + value_dim});
  const auto values = made.narrow(-1, plain, value_dim).contiguous();
  at::Tensor keys;
  {
    const base::WorkScope scope("rotate", base::WorkKind::attention);
    const auto rotated = kernels::rotate(key.unsqueeze(2), table);
    keys = at::cat({rotated.expand({-1, -1, heads, -1}), made.narrow(-1, 0, plain)}, -1);
  }
  return linear(attention(queries, keys, values, scale, window, sequences, cache ? &cache->key_values : nullptr, {}, largest_scores), {o});
}

}  // namespace ingot::layers
