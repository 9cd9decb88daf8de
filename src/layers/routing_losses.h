// What training adds to the loss so that a router uses its experts evenly and keeps its logits small. Nothing is added to the number that
// the head gives: the gradients join that of a layer's mixing weights on the way back.
//
// Balance, of a set of tokens (Switch Transformer, arXiv 2101.03961, eq. 4; for several experts a token DeepSeek-V3, arXiv 2412.19437,
// eq. 17): E times the sum over experts of f p, with f the share of the set's choices that went to the expert, a constant, and p the mean
// of what the router gave it; 1 where all are alike. Sigmoids are divided by their sum over the experts first. A set is a sequence, a
// microbatch of a replica, or the batch: of all replicas, and of the microbatches of the step so far (arXiv 2501.11873).
// z: the mean over tokens of the square of the log-sum-exp of the logits (ST-MoE, arXiv 2202.08906, eq. 5).
// Losses of layers are added up; in each, every token of the global batch weighs the same.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "layers/router.h"

namespace ingot::layers {

enum class BalanceOver { sequence, microbatch, batch };
/// "sequence", "microbatch", "batch".
const std::vector<std::string>& balance_over_names();
BalanceOver balance_over_from_name(const std::string& name);

struct RoutingLossSettings {
  double balance = 0, z = 0;  // coefficients; 0 = off
  BalanceOver over = BalanceOver::batch;
  bool is_on() const { return balance > 0 || z > 0; }
};

/// What the passes of one step have in common. Tensors stay in their place from step to step, for graphs of a GPU.
class RoutingTotals {
 public:
  RoutingTotals(int64_t layers, int64_t classes, at::Device device);
  void clear();
  /// Choices of each class so far, int64 [classes], of this rank's microbatches and those of its replicas.
  at::Tensor counts(int64_t layer) const { return counts_[layer]; }
  /// fp32 [2] of this rank's tokens: balance and z without coefficients, summed over layers.
  const at::Tensor& values() const { return values_; }

 private:
  at::Tensor counts_, values_;  // [layers, classes]
};

/// Of one microbatch.
class RoutingLosses {
 public:
  /// Adds up over the ranks that have tokens of the same sequences (for a sequence or a microbatch), or of the same batch; in place.
  using Sum = std::function<void(const at::Tensor&)>;
  /// `share`: of a token in the mean, 1 / tokens of the global batch. `totals` outlives it.
  RoutingLosses(const RoutingLossSettings& settings, double share, Sum sum, RoutingTotals& totals)
      : settings_(settings), share_(share), sum_(std::move(sum)), totals_(totals) {}

  /// Of these tokens: which of the microbatch's rows each is of. Of `rows` rows of `seq` tokens, one after another, those from `first` on.
  struct Tokens {
    int64_t rows = 0, seq = 0, first = 0;
  };
  /// routing.weight, through which the losses' gradients come. While activations are recomputed nothing is counted again.
  at::Tensor attach_to(const Routing& routing, int64_t layer, int64_t experts, const Tokens& tokens);

 private:
  /// f of each expert, [experts], or of each token's sequence, [tokens, experts].
  at::Tensor shares_of_choices(const Routing& routing, int64_t layer, int64_t experts, const Tokens& tokens);

  RoutingLossSettings settings_;
  double share_;
  Sum sum_;
  RoutingTotals& totals_;
  std::map<int64_t, at::Tensor> shares_;  // by layer
};

}  // namespace ingot::layers
