// ZAYA1's router (layers/router.h): a small MLP with a state that runs along the depth, and a class of tokens that skip the mixture.
#pragma once

#include "models/parts/router.h"

namespace ingot::models {

class ZayaRouter final : public Router {
 public:
  /// `is_first`: of the model's routers with a state; there is none before it.
  ZayaRouter(const BlockContext& block, bool is_first) : Router(block), is_first_(is_first) {}

  void declare(const std::string& prefix) override;
  layers::Routing route(const at::Tensor& x, const at::Tensor& state, const layers::ChooseClasses& choose) const override;
  void initialise() override;
  bool add_decode_steps(decode::Program& program, const std::shared_ptr<decode::Choices>& choices) const override;
  int64_t classes() const override { return config().experts + (config().skip_class ? 1 : 0); }
  int64_t state_width() const override { return config().router_hidden; }
  layers::Parameter* balancing_bias() const override { return parameters_.balancing_bias; }

 private:
  layers::Parameter& fan_in_matrix(const std::string& name, tensor::Shape shape) const;

  bool is_first_;
  layers::RouterParameters parameters_{};
};

}  // namespace ingot::models
