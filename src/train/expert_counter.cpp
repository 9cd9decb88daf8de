#include "train/expert_counter.h"

#include "kernels/routing.h"

namespace ingot::train {
namespace {

// Of a layer's tokens, [1]; sigmoids are divided by their sum first.
at::Tensor entropy_of(const layers::Routing& routing) {
  const auto logits = routing.logits.detach().to(at::kFloat);
  auto p = routing.score == kernels::RouterScore::softmax ? at::softmax(logits, 1) : at::sigmoid(logits);
  if (routing.score != kernels::RouterScore::softmax) p = p / p.sum(1, /*keepdim=*/true).clamp_min(1e-30);
  return -(p * p.clamp_min(1e-30).log()).sum().reshape({1});
}

}  // namespace

void ExpertCounter::on_routing(int64_t layer, const layers::Routing& routing) {
  auto &count = counts_[static_cast<size_t>(layer)], &memory = memory_[static_cast<size_t>(layer)];
  auto seen = kernels::class_counts(routing.choice, routing.logits.size(1));
  seen = device::cat({seen, (entropy_of(routing) * kEntropyUnits).to(at::kLong)});
  if (has_capacity_) seen = device::cat({seen, at::zeros({1}, seen.options())});
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
