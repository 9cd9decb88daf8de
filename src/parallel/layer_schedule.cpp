#include "parallel/layer_schedule.h"

#include "base/error.h"
#include "layers/embedding.h"
#include "layers/head.h"
#include "layers/linear.h"
#include "parallel/tensor/schedule.h"
#include "parallel/tensor_sequence/schedule.h"

namespace ingot::parallel {

void LayerSchedule::require_shares(const char* name, int64_t value) const {
  if (value % ranks() == 0) return;
  std::vector<int64_t> good;
  for (int64_t n = 1; n <= std::min<int64_t>(value, 64); ++n)
    if (value % n == 0) good.push_back(n);
  throw base::ConfigError("parallel.{} = {} does not divide model.{} = {}; it may be {}", setting(), ranks(), name, value,
                          fmt::join(good, ", "));
}

at::Tensor LayerSchedule::run(const layers::TokenwiseLayer& layer, const at::Tensor& x, const layers::Sequences& sequences) const {
  return leave(layers::linear(layer.inner(enter(x, sequences), layer.weights), {layer.last}));
}

at::Tensor LayerSchedule::run(const layers::AttentionLayer& layer, const at::Tensor& x, layers::Sequences& sequences,
                              const layers::Caches<layers::AttentionCache>& caches) const {
  return leave(layer(enter(x, sequences), sequences, caches));
}

at::Tensor LayerSchedule::embed(const at::Tensor& ids, layers::Parameter& table, at::ScalarType dtype, const layers::Sequences&) const {
  return leave(layers::embedding(ids, table, dtype));
}

at::Tensor LayerSchedule::head_loss(const at::Tensor& hidden, layers::Parameter& head, const at::Tensor& targets, double scale,
                                    const layers::HeadRule& rule, const layers::Sequences&) const {
  return layers::head_loss(hidden, head, targets, scale, rule);
}

at::Tensor LayerSchedule::logits(const at::Tensor& hidden, const layers::Parameter& head) const { return layers::logits_of(hidden, head); }

std::unique_ptr<LayerSchedule> make_schedule(const Layout& layout) {
  if (layout.tensor_sequence.is_on()) return std::make_unique<TensorSequenceSchedule>(layout.tensor_sequence, layout.sequence);
  if (layout.tensor.is_on()) return std::make_unique<TensorSchedule>(layout.tensor);
  return std::make_unique<LayerSchedule>();
}

}  // namespace ingot::parallel
