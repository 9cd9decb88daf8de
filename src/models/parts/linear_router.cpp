#include "models/parts/linear_router.h"

namespace ingot::models {

using layers::Parameter;

void LinearRouter::declare(const std::string& prefix) {
  const int64_t experts = config().experts;
  auto& weight = block_.matrix(prefix + "weight", {experts, config().hidden});
  weight.keeps_fp32 = true;  // rounding would flip experts
  parameters_ = {.weight = &weight,
                 .balancing_bias = &block_.add(
                     {.name = prefix + "balancing_biases", .shape = {experts}, .kind = Parameter::Kind::buffer, .keeps_fp32 = true}),
                 .top_k = config().top_k,
                 .renormalises = config().norm_topk_prob};
}

layers::Routing LinearRouter::route(const at::Tensor& x, const at::Tensor& /*state*/, const layers::ChooseClasses& choose) const {
  return layers::route(x, parameters_, choose);
}

void LinearRouter::describe(layers::Workload& work, layers::ActivationId x) const {
  const int64_t experts = config().experts, slots = block_.rows_between(work) * config().top_k, rows = block_.rows_between(work);
  auto x_wide = x;
  if (work.element_bytes() < work.wide_bytes()) {
    x_wide = work.wide(config().hidden, rows);
    work.kernel("copy", {x}, {x_wide}, {});
  }
  const auto logits = work.wide(experts, rows);
  work.linear(x_wide, logits);
  work.kernel("router", {logits}, {work.wide(1, slots)}, {work.wide(experts, rows), work.wide(1, slots), work.indices(slots)});
}

}  // namespace ingot::models
