// TSP as a schedule: shards of the weights travel to each rank's tokens (parallel/tensor_sequence/axis.h). The tokens of a generation are
// the exception: weights and cached keys stay where they are, and each rank's shards add to a sum (decoding.h).
#pragma once

#include "parallel/layer_schedule.h"

namespace ingot::parallel {

class TensorSequenceSchedule final : public LayerSchedule {
 public:
  /// `tokens`: how the ranks of `axis` share the tokens.
  TensorSequenceSchedule(const TensorSequenceAxis& axis, const ContextAxis& tokens) : axis_(axis), tokens_(tokens) {}

  const char* setting() const override { return "tensor_sequence"; }
  int ranks() const override { return axis_.size; }
  tensor::Range share(int64_t n) const override { return axis_.share(n); }
  void require_heads(int64_t heads, int64_t kv_heads, int64_t head_dim) const override;
  void require_local(const char* layer) const override;

  at::Tensor leave(const at::Tensor& partial) const override;
  at::Tensor run(const layers::TokenwiseLayer& layer, const at::Tensor& x, const layers::Sequences& sequences) const override;
  at::Tensor run(const layers::AttentionLayer& layer, const at::Tensor& x, layers::Sequences& sequences,
                 const layers::Caches<layers::AttentionCache>& caches) const override;
  at::Tensor embed(const at::Tensor& ids, layers::Parameter& table, at::ScalarType dtype,
                   const layers::Sequences& sequences) const override;
  at::Tensor head_loss(const at::Tensor& hidden, layers::Parameter& head, const at::Tensor& targets, double scale,
                       const layers::HeadRule& rule, const layers::Sequences& sequences) const override;
  at::Tensor logits(const at::Tensor& hidden, const layers::Parameter& head) const override;

 private:
  TensorSequenceAxis axis_;
  ContextAxis tokens_;
};

}  // namespace ingot::parallel
