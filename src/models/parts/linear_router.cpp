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

}  // namespace ingot::models
