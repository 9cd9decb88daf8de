// The common router (layers/router.h): one matrix, a softmax over all experts, the largest few.
#pragma once

#include "models/parts/router.h"

namespace ingot::models {

class LinearRouter final : public Router {
 public:
  using Router::Router;

  void declare(const std::string& prefix) override;
  layers::Routing route(const at::Tensor& x, const at::Tensor& state, const layers::ChooseClasses& choose) const override;
  int64_t classes() const override { return config().experts; }
  layers::Parameter* balancing_bias() const override { return parameters_.balancing_bias; }

 private:
  layers::LinearRouterParameters parameters_{};
};

}  // namespace ingot::models
