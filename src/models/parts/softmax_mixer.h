// Causal softmax attention of grouped queries (layers/softmax_attention.h), under Llama's names.
#pragma once

#include "layers/softmax_attention.h"
#include "models/parts/norm.h"
#include "models/parts/token_mixer.h"

namespace ingot::models {

/// RMSNorm of q and k before RoPE: none, of every head on its own, or over all heads' channels.
enum class QkNorm { none, head, all };

class SoftmaxMixer final : public TokenMixer {
 public:
  struct Options {
    QkNorm qk_norm = QkNorm::none;
    NormWeight norm_weight = NormWeight::plain;
    bool is_gated = false;        // a sigmoid of the stream multiplies attention's output
    bool has_sinks = false;       // a score for each head that takes part in the softmax and has no value
    bool has_qkv_biases = false;  // and none of the output projection
  };
  SoftmaxMixer(const BlockContext& block, int64_t layer, const Options& options);

  void declare(const std::string& prefix) override;
  at::Tensor mix(const at::Tensor& normed, ForwardContext& context) const override;
  bool add_decode_steps(decode::Program& program) const override;
  void set_rope_base(double base) override { attention_.rotary.base = base; }
  at::Tensor watch_scores(at::Device device) override;
  std::vector<layers::RowFactors> clip_scores(const at::Tensor& gamma) const override;

 private:
  Options options_;
  layers::SoftmaxAttention attention_;
  layers::Parameter* out_bias_ = nullptr;
};

}  // namespace ingot::models
