#include "train/expert_counter.h"

#include "kernels/routing.h"

namespace ingot::train {

void ExpertCounter::on_routing(int64_t layer, const layers::Routing& routing) {
  auto &count = counts_[static_cast<size_t>(layer)], &memory = memory_[static_cast<size_t>(layer)];
  const auto seen = kernels::class_counts(routing.choice, routing.logits.size(1));
  if (count.defined()) {
    count.add_(seen);
  } else {
    if (memory.defined()) memory.copy_(seen);
    else memory = seen;
    count = memory;
  }
}

}  // namespace ingot::train
