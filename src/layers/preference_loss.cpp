#include "layers/preference_loss.h"

#include <ATen/core/grad_mode.h>

namespace ingot::layers {

Objective preference_loss(const at::Tensor& losses, const PreferencePairs& pairs, const PreferenceSettings& settings,
                          const std::function<void(const at::Tensor&)>& sum, bool counts, const at::Tensor& totals) {
  const at::NoGradGuard no_grad;
  const auto is_pair = pairs.reference.isnan().logical_not();
  // log p(chosen) - log p(rejected): a small difference of large numbers.
  const auto margins = at::zeros_like(pairs.reference).scatter_add_(1, pairs.first, -pairs.sign * losses);
  if (sum) sum(margins);
  const auto h = ((margins - pairs.reference) * settings.beta).masked_fill(is_pair.logical_not(), 0);
  const double turned = settings.label_smoothing, right = 1 - turned;
  const auto of_pairs = -(right * at::log_sigmoid(h) + turned * at::log_sigmoid(-h)) * is_pair;
  const auto slope = settings.beta * (turned * at::sigmoid(h) - right * at::sigmoid(-h)) * is_pair;  // by the margin
  if (counts && totals.defined()) {
    totals.select(0, 0).add_(h.gt(0).logical_and(is_pair).sum());
    totals.select(0, 1).add_(h.sum());
  }
  const auto value = counts ? of_pairs.sum() : at::zeros({}, of_pairs.options());
  return {.value = value.to(losses.scalar_type()), .weights = -pairs.sign * slope.gather(1, pairs.first)};
}

}  // namespace ingot::layers
