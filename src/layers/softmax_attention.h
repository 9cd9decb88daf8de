// The attention half of a Llama block: projections, RMSNorm of q and k where a model has them, RoPE, grouped-query attention, output
// projection.
// Gradient convention: q, k, v and o get theirs in Parameter::grad (layers/linear.h), biases and norms from autograd.
#pragma once

#include "kernels/qk_norm.h"
#include "layers/schedulable.h"

namespace ingot::layers {

struct SoftmaxAttentionWeights {
  int64_t heads = 0, kv_heads = 0, head_dim = 0, window = 0;  // of the weights that are here (AttentionLayer); window 0 = unlimited
  RotarySettings rotary{};
  Parameter *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr;   // [heads * head_dim, hidden], …, [hidden, heads * head_dim]
  Parameter *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;  // all or none
  /// Of q and k before RoPE, over each run of as many channels as the weight has: [head_dim], every head on its own, or all heads'.
  Parameter *q_norm = nullptr, *k_norm = nullptr;  // both or none
  double norm_eps = 0;
  /// Makes of a norm's weight what this rank's heads use, where ranks hold it whole and each sees a part of its gradient; empty: as it is.
  std::function<at::Tensor(const at::Tensor&)> repeated{};
  bool norm_adds_one = false;   // 1 + weight multiplies (Gemma)
  double scale = 0;             // of the scores; 0 = 1 / sqrt(head_dim)
  double score_cap = 0;         // kernels::ScoreRule
  Parameter* gate = nullptr;    // [heads * head_dim, hidden]: its sigmoid multiplies attention's output; as the next
  at::Tensor largest_scores{};  // [heads], see attention(); undefined: nobody asks
  Parameter* sinks = nullptr;   // [heads], see attention(); not for schedules that run it with shards of other ranks
};

struct SoftmaxAttention final : AttentionLayer, SoftmaxAttentionWeights {
  SoftmaxAttention() = default;
  explicit SoftmaxAttention(SoftmaxAttentionWeights weights) : SoftmaxAttentionWeights(std::move(weights)) {}

  at::Tensor operator()(const at::Tensor& x, Sequences& sequences, const Caches<AttentionCache>& caches) const override;
  Heads of_all_ranks() const override;
  ShardOfWeights projections() const override;
  Parameter& output() const override { return *o; }
  Projection projection(Sequences& sequences, at::ScalarType dtype, int ranks) const override;
  std::array<at::Tensor, 3> project_new(const at::Tensor& x, Sequences& sequences, const Caches<AttentionCache>& caches, int rank,
                                        int ranks, const Gather& gather) const override;

 private:
  kernels::QkNorm norm_of(const at::Tensor& q_weight, const at::Tensor& k_weight) const;
  std::vector<Parameter*> biases() const { return q_bias ? std::vector{q_bias, k_bias, v_bias} : std::vector<Parameter*>{}; }
};

}  // namespace ingot::layers
