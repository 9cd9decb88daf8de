#include "layers/softmax_attention.h"

#include <cmath>

#include "layers/linear.h"

namespace ingot::layers {

at::Tensor SoftmaxAttention::operator()(const at::Tensor& x, Sequences& sequences, KeyValueCache* cache) const {
  const bool biased = q_bias != nullptr;
  const auto packed = linear(x, {q, k, v}, biased ? std::vector{q_bias, k_bias, v_bias} : std::vector<Parameter*>{});
  const auto [queries, keys, values] =
      kernels::split_and_rotate(packed, heads, kv_heads, head_dim, sequences.rotary(rotary, x.scalar_type()));
  const auto mixed = attention(queries, keys, values, 1 / std::sqrt(static_cast<double>(head_dim)), window, sequences, cache);
  return linear(mixed, {o});
}

}  // namespace ingot::layers
