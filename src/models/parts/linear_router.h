// The common router (layers/router.h): one matrix, and the rule of model.router_score, top_k and what goes with them.
#pragma once

#include "models/parts/router.h"

namespace ingot::models {

class LinearRouter final : public Router {
 public:
  LinearRouter(const BlockContext& block, bool has_bias);

  void declare(const std::string& prefix) override;
  layers::Routing route(const at::Tensor& x, const at::Tensor& state, const layers::ChooseClasses& choose) const override;
  bool add_decode_steps(decode::Program& program, const std::shared_ptr<decode::Choices>& choices) const override;
  int64_t classes() const override { return config().experts; }
  layers::Parameter* balancing_bias() const override { return parameters_.balancing_bias; }

 private:
  bool has_bias_;
  layers::LinearRouterParameters parameters_{};
};

}  // namespace ingot::models
