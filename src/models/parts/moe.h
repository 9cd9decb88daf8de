// A dropless mixture of gated MLPs (layers/experts.h) behind a router of its own; beside it, where a model has one, an MLP for all tokens.
#pragma once

#include "models/parts/mlp.h"
#include "models/parts/router.h"

namespace ingot::models {

class Moe final : public FeedForward {
 public:
  struct Options {
    kernels::Gate gate = kernels::Gate::silu;
    bool has_biases = false;    // of the experts' matrices
    bool gates_shared = false;  // a sigmoid of the stream multiplies what the expert for all tokens gives
  };
  Moe(const BlockContext& block, int64_t layer, std::unique_ptr<Router> router, const Options& options);

  void declare(const std::string& prefix) override;
  Result forward(const at::Tensor& x, const at::Tensor& router_state, const ForwardContext& context) const override;
  bool add_decode_steps(decode::Program& program) const override;
  void initialise() override { router_->initialise(); }
  int64_t classes() const override { return router_->classes(); }
  int64_t router_state_width() const override { return router_->state_width(); }
  layers::Parameter* balancing_bias() const override { return router_->balancing_bias(); }
  int64_t idle_elements() const override {
    const int64_t ffn = config().expert_ffn, hidden = config().hidden, biases = options_.has_biases ? 2 * ffn + hidden : 0;
    return (config().experts - config().top_k) * (3 * ffn * hidden + biases);
  }

 private:
  layers::ChooseClasses choose() const;

  Options options_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<Mlp> shared_;
  layers::Parameter* shared_gate_ = nullptr;  // [1, hidden]
  layers::Parameter *gate_up_ = nullptr, *down_ = nullptr, *gate_up_bias_ = nullptr, *down_bias_ = nullptr;
};

}  // namespace ingot::models
