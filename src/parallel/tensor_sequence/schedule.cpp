#include "parallel/tensor_sequence/schedule.h"

#include "base/error.h"
#include "layers/linear.h"
#include "parallel/tensor_sequence/decoding.h"
#include "parallel/tensor_sequence/folded_attention.h"
#include "parallel/tensor_sequence/folded_layer.h"
#include "parallel/tensor_sequence/folded_vocabulary.h"

namespace ingot::parallel {
namespace {

// The tokens of a pass are spread over the ranks, but for those of a generation.
bool decodes(const layers::Sequences& sequences) { return !sequences.order().is_on(); }

}  // namespace

void TensorSequenceSchedule::require_heads(int64_t heads, int64_t kv_heads, int64_t head_dim) const {
  check_folded_heads(heads, kv_heads, head_dim, axis_.size);
}

void TensorSequenceSchedule::require_local(const char* layer) const {
  throw base::ConfigError("parallel.tensor_sequence = {}: {} has no schedule over that axis; parallel.context has", axis_.size, layer);
}

at::Tensor TensorSequenceSchedule::leave(const at::Tensor& partial) const {
  return TensorAxis{.rank = axis_.rank, .size = axis_.size, .group = axis_.group}.leave(partial);
}

at::Tensor TensorSequenceSchedule::run(const layers::TokenwiseLayer& layer, const at::Tensor& x, const layers::Sequences& sequences) const {
  return decodes(sequences) ? LayerSchedule::run(layer, x, sequences) : folded_layer(x, layer, axis_);
}

at::Tensor TensorSequenceSchedule::run(const layers::AttentionLayer& layer, const at::Tensor& x, layers::Sequences& sequences,
                                       const layers::Caches<layers::AttentionCache>& caches) const {
  if (!decodes(sequences)) return folded_attention(x, layer, sequences, axis_, tokens_);
  if (!caches) throw base::ModelError("tokens over a tensor_sequence axis are either shared out or continue what a cache has");
  const auto gather = [&](const std::vector<at::Tensor>& own) { return gather_channels(own, axis_); };
  const auto [q, k, v] = layer.project_new(x, sequences, caches, axis_.rank, axis_.size, gather);
  const auto heads = layer.of_all_ranks();
  const auto mixed =
      attend_to_spread_cache(q, k, v, heads.rule, heads.window, sequences, caches.members(&layers::AttentionCache::key_values), axis_);
  return leave(layers::linear(mixed, {&layer.output()}));
}

at::Tensor TensorSequenceSchedule::embed(const at::Tensor& ids, layers::Parameter& table, at::ScalarType dtype,
                                         const layers::Sequences& sequences) const {
  return decodes(sequences) ? LayerSchedule::embed(ids, table, dtype, sequences) : folded_embedding(ids, table, dtype, axis_);
}

at::Tensor TensorSequenceSchedule::head_loss(const at::Tensor& hidden, layers::Parameter& head, const at::Tensor& targets, double scale,
                                             const layers::HeadRule& rule, const layers::Sequences&) const {
  return folded_head_loss(hidden, head, targets, scale, axis_, rule);
}

at::Tensor TensorSequenceSchedule::logits(const at::Tensor& hidden, const layers::Parameter& head) const {
  return gather_channels({LayerSchedule::logits(hidden, head)}, axis_)[0];
}

}  // namespace ingot::parallel
