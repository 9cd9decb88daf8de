#include "parallel/context/attention_spread.h"

#include "layers/sequences.h"

namespace ingot::parallel {

AttentionSpread::AttentionSpread(const ContextAxis& over, const layers::Sequences& sequences, const at::Tensor& x, int64_t chunk_length,
                                 double scores_scale, int64_t seen)
    : axis(over),
      document_start(sequences.document_start()),
      batch(x.size(0)),
      length(chunk_length),
      window(seen),
      scale(scores_scale),
      device(x.device()) {}

kernels::AttentionMask AttentionSpread::mask(int64_t first_query, int64_t queries, int64_t first_key, int64_t keys) const {
  kernels::AttentionMask mask{{}, first_query - first_key, window, document_start.defined()};
  if (!document_start.defined() && window == 0) return mask;
  at::Tensor from;
  if (document_start.defined()) from = document_start.narrow(1, first_query, queries);
  if (window > 0) {
    const auto options = at::TensorOptions().dtype(at::kInt).device(document_start.defined() ? document_start.device() : device);
    const auto edge = at::arange(first_query + 1 - window, first_query + queries + 1 - window, options).unsqueeze(0);
    from = from.defined() ? at::maximum(from, edge) : edge.expand({batch, queries});
  }
  mask.visible_from = (from - first_key).clamp(0, keys).contiguous();
  return mask;
}

}  // namespace ingot::parallel
