// Counts the tokens of each class of each layer's router, on their device, and how undecided it was; where experts have a capacity, what
// they took of the tokens, too.
#pragma once

#include <vector>

#include "models/forward_context.h"

namespace ingot::train {

class ExpertCounter : public models::Observer {
 public:
  /// `blocks` of a model, its predictors' among them.
  explicit ExpertCounter(int64_t blocks, bool has_capacity = false)
      : has_capacity_(has_capacity), counts_(static_cast<size_t>(blocks)), memory_(counts_) {}
  void on_routing(int64_t layer, const layers::Routing& routing) override;
  void on_capacity(int64_t layer, const at::Tensor& choice, int64_t experts) override;
  /// Numbers of a layer's counts.
  int64_t columns(int64_t classes) const { return classes + (has_capacity_ ? 2 : 1); }
  /// Nats, of the number behind those of the classes.
  static double entropy(int64_t counted) { return static_cast<double>(counted) / kEntropyUnits; }
  /// int64 [classes], the sum over tokens of the entropy of what the router gave the classes, and with a capacity the slots that experts
  /// took, undefined for a layer without a router. Of a layer they lie in the same place in every step.
  const std::vector<at::Tensor>& counts() const { return counts_; }
  void clear() { counts_.assign(counts_.size(), at::Tensor()); }
  void set(int64_t layer, const at::Tensor& count) { counts_[static_cast<size_t>(layer)] = count; }

 private:
  static constexpr double kEntropyUnits = 1 << 20;  // of a nat: whole numbers add up alike in every order

  bool has_capacity_;
  std::vector<at::Tensor> counts_, memory_;
};

}  // namespace ingot::train
