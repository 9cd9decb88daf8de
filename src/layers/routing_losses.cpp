#include "layers/routing_losses.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "base/work_scope.h"
#include "kernels/routing.h"
#include "layers/attach_loss.h"
#include "layers/recompute.h"

namespace ingot::layers {
namespace {

// What a router gave each class, [tokens, classes]; rows sum to 1.
at::Tensor probabilities_of(const Routing& routing) {
  if (routing.score == kernels::RouterScore::softmax) return routing.logits.softmax(-1);
  const auto scores = routing.logits.sigmoid();
  return scores / (scores.sum(-1, /*keepdim=*/true) + 1e-20);
}

}  // namespace

const std::vector<std::string>& balance_over_names() {
  static const std::vector<std::string> names = {"sequence", "microbatch", "batch"};
  return names;
}

BalanceOver balance_over_from_name(const std::string& name) {
  const auto& names = balance_over_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) throw base::ConfigError("unknown balance '{}'; it is {}", name, base::join(names, ", "));
  return static_cast<BalanceOver>(found - names.begin());
}

RoutingTotals::RoutingTotals(int64_t layers, int64_t classes, at::Device device)
    : counts_(at::zeros({layers, classes}, at::TensorOptions().dtype(at::kLong).device(device))),
      values_(at::zeros({2}, at::TensorOptions().dtype(at::kFloat).device(device))) {}

void RoutingTotals::clear() {
  counts_.zero_();
  values_.zero_();
}

at::Tensor RoutingLosses::shares_of_choices(const Routing& routing, int64_t layer, int64_t experts, const Tokens& tokens) {
  const at::NoGradGuard no_grad;
  const auto found = shares_.find(layer);
  if (found != shares_.end()) return found->second;
  const int64_t classes = routing.logits.size(1), here = routing.logits.size(0);
  const auto shares_in = [&](const at::Tensor& counts) {
    const auto wide = counts.to(routing.logits.scalar_type());
    return (wide / wide.sum(-1, /*keepdim=*/true).clamp_min(1)).narrow(-1, 0, experts);
  };
  at::Tensor shares;
  if (settings_.over == BalanceOver::sequence) {
    const auto row = at::arange(tokens.first, tokens.first + here, routing.choice.options()).div_(tokens.seq, "floor");
    const auto chosen = (routing.choice.view({here, -1}) + row.unsqueeze(1) * classes).flatten();
    const auto counts = kernels::class_counts(chosen, tokens.rows * classes).view({tokens.rows, classes});
    sum_(counts);
    shares = shares_in(counts).index_select(0, row);
  } else {
    auto counts = kernels::class_counts(routing.choice, classes);
    sum_(counts);
    if (settings_.over == BalanceOver::batch) counts = totals_.counts(layer).narrow(0, 0, classes).add_(counts).clone();
    shares = shares_in(counts);
  }
  return shares_[layer] = shares;
}

at::Tensor RoutingLosses::attach_to(const Routing& routing, int64_t layer, int64_t experts, const Tokens& tokens) {
  const base::WorkScope scope("routing losses", base::owns(base::WorkKind::routing));
  const bool is_first_time = !is_recomputing();
  at::Tensor loss;
  const auto add = [&](const at::Tensor& value, double coefficient, int64_t which) {
    const auto term = value * (coefficient * share_);
    loss = loss.defined() ? loss + term : term;
    if (is_first_time) totals_.values().select(0, which).add_(value.detach(), share_);
  };
  if (settings_.balance > 0) {
    const auto shares = shares_of_choices(routing, layer, experts, tokens);
    add((probabilities_of(routing).narrow(1, 0, experts) * shares).sum() * experts, settings_.balance, 0);
  }
  if (settings_.z > 0) add(routing.logits.logsumexp(-1).square().sum(), settings_.z, 1);
  return attach_loss(routing.weight, loss);
}

}  // namespace ingot::layers
