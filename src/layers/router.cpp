#include "layers/router.h"

#include <ATen/core/grad_mode.h>

#include "base/work_scope.h"
#include "kernels/norm.h"
#include "layers/linear.h"

namespace ingot::layers {

Routing route(const at::Tensor& x, const at::Tensor& previous_state, const RouterParameters& p, double norm_eps,
              const ChooseClasses& choose) {
  Routing routing;
  const auto wide = p.down_weight->value.scalar_type();
  routing.state = linear(x.to(wide), {p.down_weight}, {p.down_bias});
  const base::WorkScope scope("route");
  if (p.state_scale && previous_state.defined()) routing.state = routing.state + p.state_scale->value * previous_state;
  auto h = kernels::rms_norm(routing.state, p.norm_weight->value, norm_eps, wide);
  h = at::gelu(linear(h, {p.fc1_weight}, {p.fc1_bias}));
  h = at::gelu(linear(h, {p.fc2_weight}, {p.fc2_bias}));
  routing.logits = linear(h, {p.out_weight});
  const auto probabilities = at::softmax(routing.logits, -1);
  {
    const at::NoGradGuard no_grad;
    routing.choice = (probabilities + p.balancing_bias->value).argmax(-1);
    if (choose) routing.choice = choose(routing.choice);
  }
  routing.weight = probabilities.gather(1, routing.choice.unsqueeze(1)).squeeze(1);
  return routing;
}

}  // namespace ingot::layers
