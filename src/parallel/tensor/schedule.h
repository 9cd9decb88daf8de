// Tensor parallelism as a schedule: each layer is entered with all tokens, runs its local function on its shard of the weights and is left
// with a sum over the ranks (parallel/tensor/axis.h says what is sent).
#pragma once

#include "parallel/layer_schedule.h"

namespace ingot::parallel {

class TensorSchedule final : public LayerSchedule {
 public:
  explicit TensorSchedule(const TensorAxis& axis) : axis_(axis) {}

  int ranks() const override { return axis_.size; }
  tensor::Range share(int64_t n) const override { return axis_.share(n); }
  int64_t local_heads(int64_t n) const override { return n / axis_.size; }
  bool repeats_tokens() const override { return !axis_.shards_tokens; }
  void require_heads(int64_t heads, int64_t kv_heads, int64_t head_dim) const override;

  at::Tensor enter(const at::Tensor& x, const layers::Sequences& sequences) const override;
  at::Tensor leave(const at::Tensor& partial) const override { return axis_.leave(partial); }
  at::Tensor repeated(const at::Tensor& weight) const override;
  at::Tensor head_loss(const at::Tensor& hidden, layers::Parameter& head, const at::Tensor& targets, double scale,
                       const layers::HeadRule& rule, const layers::Sequences& sequences) const override;
  at::Tensor logits(const at::Tensor& hidden, const layers::Parameter& head) const override;

 private:
  TensorAxis axis_;
};

}  // namespace ingot::parallel
