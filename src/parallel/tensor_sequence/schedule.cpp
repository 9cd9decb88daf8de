#include "parallel/tensor_sequence/schedule.h"

#include "base/error.h"
#include "layers/linear.h"
#include "parallel/tensor_sequence/decoding.h"
#include "parallel/tensor_sequence/folded_attention.h"
#include "parallel/tensor_sequence/folded_layer.h"
#include "parallel/tensor_sequence/folded_vocabulary.h"

namespace ingot::parallel {
namespace {

// The tokens of a pass are spread over the ranks, but for the new ones of a generation.
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
  if (decodes(sequences)) return leave(decode(layer, x, sequences, caches.of_all()));
  const auto out = folded_attention(x, layer, sequences, axis_, tokens_, caches ? &caches.of_all().key_values : nullptr);
  if (const int64_t count = layer.remembered_tokens(); caches && count > 0) {
    // They lie at the end of the row's last chunk.
    const int owner = tokens_.owner(tokens_.all_chunks() - 1);
    const auto last =
        owner == axis_.rank ? x.narrow(1, x.size(1) - count, count).contiguous() : at::empty({x.size(0), count, x.size(2)}, x.options());
    axis_.group->broadcast(last, owner);
    layer.remember(last, caches.of_all(), axis_.rank, axis_.size);
  }
  return out;
}

at::Tensor TensorSequenceSchedule::decode(const layers::AttentionLayer& layer, const at::Tensor& x, layers::Sequences& sequences,
                                          layers::AttentionCache& cache) const {
  const auto gather = [&](const std::vector<at::Tensor>& own) { return gather_channels(own, axis_); };
  const auto [q, k, v] = layer.project_token(x, sequences, cache, axis_.rank, axis_.size, gather);
  const auto heads = layer.of_all_ranks();
  const auto mixed = attend_to_spread_cache(q, k, v, heads.rule, heads.window, sequences.offset(), cache.key_values, axis_);
  return layers::linear(mixed, {&layer.output()});
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
