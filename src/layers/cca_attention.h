// Compressed convolutional attention, the attention half of a ZAYA1 block (ZAYA1, arXiv 2511.17127).
// Gradient convention: the projections q, k, both values and o get theirs in Parameter::grad (layers/linear.h); both
// convolutions, their biases and the temperature from autograd.
#pragma once

#include "layers/schedulable.h"

namespace ingot::layers {

inline constexpr int64_t kCcaHalo = 2;  // tokens before its own that it looks at

struct CcaAttentionWeights {
  kernels::CcaShape shape{};  // of the weights that are here (AttentionLayer)
  int64_t window = 0;         // 0 = unlimited
  RotarySettings rotary{};
  Parameter *q = nullptr, *k = nullptr;                          // [heads * head_dim, hidden], [kv_heads * head_dim, hidden]
  Parameter *current_value = nullptr, *delayed_value = nullptr;  // each [kv_heads * head_dim / 2, hidden]
  Parameter *depthwise_weight = nullptr, *depthwise_bias = nullptr, *grouped_weight = nullptr, *grouped_bias = nullptr,
            *temperature = nullptr;
  Parameter* o = nullptr;  // [hidden, heads * head_dim]
};

struct CcaAttention final : AttentionLayer, CcaAttentionWeights {
  CcaAttention() = default;
  explicit CcaAttention(CcaAttentionWeights weights) : CcaAttentionWeights(std::move(weights)) {}

  at::Tensor operator()(const at::Tensor& x, Sequences& sequences, const Caches<AttentionCache>& caches) const override;
  /// Over shards of other ranks, these divide the kv heads.
  Heads of_all_ranks() const override;
  ShardOfWeights projections() const override {
    return {q, k, current_value, delayed_value, depthwise_weight, depthwise_bias, grouped_weight, grouped_bias, temperature};
  }
  Parameter& output() const override { return *o; }
  std::vector<tensor::Shape> shapes(int owner, int ranks) const override;
  Projection projection(Sequences& sequences, at::ScalarType dtype, int ranks) const override;
  std::array<at::Tensor, 3> project_new(const at::Tensor& x, Sequences& sequences, const Caches<AttentionCache>& caches, int rank,
                                        int ranks, const Gather& gather) const override;

 private:
  /// The heads of one rank's shards.
  kernels::CcaShape shape_of(int owner, int ranks) const;
  kernels::CcaWeights mixing() const;
};

}  // namespace ingot::layers
