// A gated MLP, down(act(gate x) * up x), under Llama's names.
#pragma once

#include "kernels/gate.h"
#include "models/parts/feed_forward.h"

namespace ingot::models {

class Mlp final : public FeedForward {
 public:
  /// `module`: its name within the layer; `ffn`: its inner width, the setting model.<setting>.
  struct Shape {
    const char *module = "mlp", *setting = "ffn";
    int64_t ffn = 0;
  };
  Mlp(const BlockContext& block, int64_t layer, kernels::Gate kind, Shape shape);

  void declare(const std::string& prefix) override;
  Result forward(const at::Tensor& x, const at::Tensor& router_state, const ForwardContext& context) const override;
  bool add_decode_steps(decode::Program& program) const override;
  /// Beside experts: added to their branch, times the sigmoid of `weight` by the stream where there is one.
  bool add_decode_steps(decode::Program& program, bool is_beside, layers::Parameter* weight) const;

 private:
  /// gate, up, and their biases; down.
  layers::TokenwiseLayer layer() const;

  kernels::Gate kind_;
  Shape shape_;
  layers::Parameter *gate_ = nullptr, *up_ = nullptr, *down_ = nullptr;
  layers::Parameter *gate_bias_ = nullptr, *up_bias_ = nullptr, *down_bias_ = nullptr;
};

}  // namespace ingot::models
