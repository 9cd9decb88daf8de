#include "plan/run_shape.h"

namespace ingot::plan {

int64_t RunShape::holders(const layers::Parameter& p, const models::Layout& layout) const {
  const int64_t weights = layout.tensor.size * layout.tensor_sequence.size;
  if (p.is_expert) return replicas * weights / (layout.experts.size * layout.experts.slices);
  if (!p.part.empty()) return replicas;
  return layout.tensor.is_on() && !layout.tensor.shards_tokens ? replicas : replicas * weights;
}

int64_t RunShape::parts(const layers::Parameter& p, const models::Layout& layout) {
  if (p.is_expert) return layout.experts.slices;
  return p.part.empty() ? 1 : layout.tensor.size * layout.tensor_sequence.size;
}

}  // namespace ingot::plan
