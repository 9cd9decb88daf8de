// Counts the tokens of each class of each layer's router, on their device.
#pragma once

#include <vector>

#include "models/forward_context.h"

namespace ingot::train {

class ExpertCounter : public models::Observer {
 public:
  explicit ExpertCounter(int64_t layers) : counts_(static_cast<size_t>(layers)), memory_(counts_) {}
  void on_routing(int64_t layer, const layers::Routing& routing) override;
  /// int64 [classes], undefined for a layer without a router. Of a layer they lie in the same place in every step.
  const std::vector<at::Tensor>& counts() const { return counts_; }
  void clear() { counts_.assign(counts_.size(), at::Tensor()); }
  void set(int64_t layer, const at::Tensor& count) { counts_[static_cast<size_t>(layer)] = count; }

 private:
  std::vector<at::Tensor> counts_, memory_;
};

}  // namespace ingot::train
