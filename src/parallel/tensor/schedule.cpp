#include "parallel/tensor/schedule.h"

#include "layers/head.h"
#include "parallel/tensor/vocabulary.h"

namespace ingot::parallel {

void TensorSchedule::require_heads(int64_t /*heads*/, int64_t kv_heads, int64_t /*head_dim*/) const {
  require_shares("kv_heads", kv_heads);
}

at::Tensor TensorSchedule::enter(const at::Tensor& x, const layers::Sequences& sequences) const {
  return axis_.enter(x, sequences.batch(), sequences.seq());
}

// A rank sees its own heads' part of the gradient: summed over the ranks on the way back. Where ranks have other tokens between layers, the
// sum is that over tokens.
at::Tensor TensorSchedule::repeated(const at::Tensor& weight) const {
  return repeats_tokens() ? axis_.enter(weight.view({1, 1, -1}), 1, 1).flatten() : weight;
}

at::Tensor TensorSchedule::head_loss(const at::Tensor& hidden, layers::Parameter& head, const at::Tensor& targets, double scale,
                                     const layers::HeadRule& rule, const layers::Sequences& sequences) const {
  return layers::head_loss(
      enter(hidden, sequences), head, targets, scale, rule,
      [&head, group = axis_.group](at::Tensor logits, const at::Tensor& labels, double factor, const at::Tensor& gradient, double z_loss) {
        return cross_entropy_over_ranks(std::move(logits), labels, head, factor, gradient, z_loss, *group);
      });
}

at::Tensor TensorSchedule::logits(const at::Tensor& hidden, const layers::Parameter& head) const {
  return gather_vocabulary(LayerSchedule::logits(hidden, head), *axis_.group);
}

}  // namespace ingot::parallel
