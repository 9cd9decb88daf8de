#include "plan/run_shape.h"

#include <algorithm>

namespace ingot::plan {

int64_t RunShape::holders(const layers::Parameter& p, const parallel::Layout& layout) const {
  const int64_t weights = layout.tensor.size * layout.tensor_sequence.size;
  if (p.is_expert) return replicas * weights / (layout.experts.size * layout.experts.slices);
  if (!p.part.empty()) return replicas;
  return layout.tensor.is_on() && !layout.tensor.shards_tokens ? replicas : replicas * weights;
}

int64_t RunShape::parts(const layers::Parameter& p, const parallel::Layout& layout) {
  if (p.is_expert) return layout.experts.slices;
  return p.part.empty() ? 1 : layout.tensor.size * layout.tensor_sequence.size;
}

PassShape RunShape::pass_of(const models::Model& part) const {
  // What the busiest of ranks that share experts gets; alone, a rank has them all.
  const auto& experts = part.layout().experts;
  return {.batch = sequences_at_once(),
          .seq = seq,
          .precision = precision,
          .recompute = recompute,
          .offloads_activations = offloads_activations && recompute == models::Recompute::full,
          .weighs_losses = weighs_losses,
          .target = target,
          .expert_load = std::clamp(expert_load, 1.0, static_cast<double>(experts.size)),
          .zero = zero < 2 ? 0 : zero,
          .replicas = replicas,
          .bucket_bytes = bucket_bytes,
          .is_reproducible = is_reproducible,
          .is_stage = part.layout().stage.is_on()};
}

UpdateShape RunShape::update() const {
  return {.precision = precision,
          .optimizer = optimizer,
          .replicas = replicas,
          .zero = zero,
          .bucket_bytes = bucket_bytes,
          .is_reproducible = is_reproducible,
          .target = target};
}

const std::vector<int64_t>& RunShape::documents_of(const models::Model& part) const {
  static const std::vector<int64_t> none;
  return part.layout().sequence.size == 1 ? documents : none;
}

PassShape RunShape::validation_pass_of(const models::Model& part) const {
  auto shape = pass_of(part);
  shape.batch = validation_batch;
  shape.recompute = models::Recompute::none;
  shape.offloads_activations = false;
  shape.learns = false;
  return shape;
}

}  // namespace ingot::plan
