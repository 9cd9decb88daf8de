// Linear attention with its gates (layers/linear_attention.h). A head of keys may serve several of values.
#pragma once

#include "layers/linear_attention.h"
#include "models/parts/token_mixer.h"

namespace ingot::models {

class LinearMixer final : public TokenMixer {
 public:
  struct Options {
    bool shares_norm = false;                              // one norm for all heads' outputs instead of one for each
    bool scales_queries = false;                           // by 1 / sqrt(key channels)
    bool has_sigmoid_gate = false, has_gate_bias = false;  // the output gate
    bool rotates = false;                                  // q and k, by RoPE of base 10,000
    bool operator==(const Options&) const = default;
  };
  LinearMixer(const BlockContext& block, int64_t layer, const Options& options);

  void declare(const std::string& prefix) override;
  at::Tensor mix(const at::Tensor& normed, ForwardContext& context) const override;
  bool is_linear() const override { return true; }
  int64_t halo() const override { return std::max<int64_t>(0, config().short_convolution - 1); }

 private:
  bool has_scalar_gate() const { return variant_ == layers::LinearVariant::scalar_gate || variant_ == layers::LinearVariant::gated_delta; }
  bool is_kda() const { return variant_ == layers::LinearVariant::kda; }
  bool has_channel_gates() const { return variant_ == layers::LinearVariant::diagonal_gate || is_kda(); }
  bool corrects() const { return variant_ == layers::LinearVariant::delta || variant_ == layers::LinearVariant::gated_delta || is_kda(); }
  layers::Parameter& convolution(const std::string& name, int64_t channels) const;
  layers::Parameter& spread_vector(const std::string& name, int64_t size, double mean, double deviation) const;

  Options options_;
  layers::LinearVariant variant_;
  kernels::FeatureMap map_;
  layers::LinearAttention attention_{};
};

}  // namespace ingot::models
