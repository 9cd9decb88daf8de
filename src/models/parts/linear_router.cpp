#include "models/parts/linear_router.h"

#include "base/error.h"
#include "models/decode/feed_forward.h"

namespace ingot::models {

using layers::Parameter;

LinearRouter::LinearRouter(const BlockContext& block, bool has_bias) : Router(block), has_bias_(has_bias) {
  const auto& c = config();
  if (c.router_groups < 1 || c.experts % c.router_groups != 0)
    throw base::ConfigError("model.router_groups = {} does not divide model.experts = {}", c.router_groups, c.experts);
  if (c.router_top_groups < 1 || c.router_top_groups > c.router_groups)
    throw base::ConfigError("model.router_top_groups = {} must be 1 to model.router_groups = {}", c.router_top_groups, c.router_groups);
  const int64_t within = c.experts / c.router_groups * c.router_top_groups;
  if (c.top_k > within)
    throw base::ConfigError("model.top_k = {} is more than the {} experts of model.router_top_groups = {} of {} groups", c.top_k, within,
                            c.router_top_groups, c.router_groups);
}

void LinearRouter::declare(const std::string& prefix) {
  const int64_t experts = config().experts;
  auto& weight = block_.matrix(prefix + "weight", {experts, config().hidden});
  weight.keeps_fp32 = true;  // rounding would flip experts
  parameters_ = {.weight = &weight,
                 .balancing_bias = &block_.add(
                     {.name = prefix + "balancing_biases", .shape = {experts}, .kind = Parameter::Kind::buffer, .keeps_fp32 = true}),
                 .rule = {.score = config().router_score == "sigmoid" ? kernels::RouterScore::sigmoid : kernels::RouterScore::softmax,
                          .top_k = config().top_k,
                          .renormalises = config().norm_topk_prob,
                          .scale = config().router_scale,
                          .groups = config().router_groups,
                          .top_groups = config().router_top_groups}};
  if (has_bias_) parameters_.bias = &block_.vector(prefix + "bias", experts, 0);
}

layers::Routing LinearRouter::route(const at::Tensor& x, const at::Tensor& /*state*/, const layers::ChooseClasses& choose) const {
  return layers::route(x, parameters_, choose);
}

bool LinearRouter::add_decode_steps(decode::Program& program, const std::shared_ptr<decode::Choices>& choices) const {
  return decode::add_router(program, parameters_, choices);
}

}  // namespace ingot::models
