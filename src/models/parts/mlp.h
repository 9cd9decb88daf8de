// A gated MLP, down(act(gate x) * up x), under Llama's names.
#pragma once

#include "kernels/gate.h"
#include "models/parts/feed_forward.h"

namespace ingot::models {

class Mlp final : public FeedForward {
 public:
  Mlp(const BlockContext& block, int64_t layer, kernels::Gate kind);

  void declare(const std::string& prefix) override;
  Result forward(const at::Tensor& x, const at::Tensor& router_state, const ForwardContext& context) const override;

 private:
  /// gate, up, and their biases; down.
  layers::TokenwiseLayer layer() const;

  kernels::Gate kind_;
  layers::Parameter *gate_ = nullptr, *up_ = nullptr, *down_ = nullptr;
  layers::Parameter *gate_bias_ = nullptr, *up_bias_ = nullptr, *down_bias_ = nullptr;
};

}  // namespace ingot::models
