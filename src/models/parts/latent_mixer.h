// Multi-head latent attention (layers/latent_attention.h), under DeepSeek-V3's names. Latents are made between layers, where each token is
// on one rank, and are what travels to the ranks that share the heads.
#pragma once

#include "layers/latent_attention.h"
#include "models/parts/token_mixer.h"

namespace ingot::models {

class LatentMixer final : public TokenMixer {
 public:
  LatentMixer(const BlockContext& block, int64_t layer);

  void declare(const std::string& prefix) override;
  at::Tensor mix(const at::Tensor& normed, ForwardContext& context) const override;
  void set_rope_base(double base) override { attention_.rotary.base = base; }
  at::Tensor watch_scores(at::Device device) override;
  std::vector<layers::RowFactors> clip_scores(const at::Tensor& gamma) const override;

 private:
  layers::LatentAttention attention_;
  layers::Parameter *query_down_ = nullptr, *query_down_bias_ = nullptr, *query_norm_ = nullptr;  // null where queries have no latent
  layers::Parameter *kv_down_ = nullptr, *kv_down_bias_ = nullptr, *kv_norm_ = nullptr;           // rows: the latent's, then the key's
  layers::Parameter* out_bias_ = nullptr;
};

}  // namespace ingot::models
