#include "layers/router.h"

#include <ATen/core/grad_mode.h>

#include "base/work_scope.h"
#include "kernels/norm.h"
#include "kernels/routing.h"
#include "layers/linear.h"

namespace ingot::layers {

Routing route(const at::Tensor& x, const at::Tensor& previous_state, const RouterParameters& p, double norm_eps,
              const ChooseClasses& choose) {
  Routing routing;
  const auto wide = p.down_weight->value.scalar_type();
  routing.state = linear(x.to(wide), {p.down_weight}, {p.down_bias});
  const base::WorkScope scope("route", base::owns(base::WorkKind::routing));
  if (p.state_scale && previous_state.defined()) routing.state = routing.state + p.state_scale->value * previous_state;
  auto h = kernels::rms_norm(routing.state, p.norm_weight->value, norm_eps, wide);
  h = at::gelu(linear(h, {p.fc1_weight}, {p.fc1_bias}));
  h = at::gelu(linear(h, {p.fc2_weight}, {p.fc2_bias}));
  routing.logits = linear(h, {p.out_weight});
  const auto chosen = kernels::topk_softmax(routing.logits, p.balancing_bias->value, p.top_k, /*renormalises=*/false, choose);
  routing.weight = chosen.weight, routing.choice = chosen.choice;
  return routing;
}

Routing route(const at::Tensor& x, const LinearRouterParameters& p, const ChooseClasses& choose) {
  Routing routing;
  routing.logits = linear(x.to(p.weight->value.scalar_type()), {p.weight}, p.bias ? std::vector{p.bias} : std::vector<Parameter*>{});
  const base::WorkScope scope("route");
  const auto chosen = kernels::choose_experts(routing.logits, p.balancing_bias->value, p.rule, choose);
  routing.score = p.rule.score;
  routing.weight = chosen.weight, routing.choice = chosen.choice;
  return routing;
}

at::Tensor within_capacity(const at::Tensor& choice, const at::Tensor& weight, int64_t experts, int64_t capacity) {
  const at::NoGradGuard no_grad;
  const base::WorkScope scope("capacity", base::owns(base::WorkKind::routing));
  // Sorted by weight, then, with equals in that order, by expert: a slot's place among its expert's is its row less the first of them.
  const auto heaviest_first = weight.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  const auto by_weight = choice.index_select(0, heaviest_first);
  const auto sorted = kernels::sort_slots(by_weight, experts);
  const auto begins = device::cat({at::zeros({1}, sorted.ends.options()), sorted.ends.narrow(0, 0, experts - 1)});
  const auto place = sorted.inverse - begins.index_select(0, by_weight.clamp_max(experts - 1));
  const auto kept = at::where(place.lt(capacity).logical_or(by_weight.ge(experts)), by_weight, experts);
  return at::empty_like(choice).index_copy_(0, heaviest_first, kept);
}

}  // namespace ingot::layers
