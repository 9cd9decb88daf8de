#include "train/expert_counter.h"

#include "kernels/routing.h"

namespace ingot::train {

void ExpertCounter::on_routing(int64_t layer, const layers::Routing& routing) {
  auto &count = counts_[static_cast<size_t>(layer)], &memory = memory_[static_cast<size_t>(layer)];
  auto seen = kernels::class_counts(routing.choice, routing.logits.size(1));
  if (has_capacity_) seen = at::cat({seen, at::zeros({1}, seen.options())});
  if (count.defined()) {
    count.add_(seen);
  } else {
    if (memory.defined()) memory.copy_(seen);
    else memory = seen;
    count = memory;
  }
}

void ExpertCounter::on_capacity(int64_t layer, const at::Tensor& choice, int64_t experts) {
  auto& count = counts_[static_cast<size_t>(layer)];
  count.select(0, count.size(0) - 1).add_(choice.lt(experts).sum());
}

}  // namespace ingot::train
