// Compressed convolutional attention (layers/cca_attention.h), under ZAYA1's names.
#pragma once

#include "layers/cca_attention.h"
#include "models/parts/token_mixer.h"

namespace ingot::models {

class CcaMixer final : public TokenMixer {
 public:
  CcaMixer(const BlockContext& block, int64_t layer);

  void declare(const std::string& prefix) override;
  at::Tensor mix(const at::Tensor& normed, ForwardContext& context) const override;
  bool add_decode_steps(decode::Program& program) const override;
  void set_rope_base(double base) override { attention_.rotary.base = base; }
  int64_t halo() const override { return layers::kCcaHalo; }

 private:
  /// Rows of the two value projections that make up this rank's value heads: the first half of all value channels comes from the
  /// token itself, the second from the one before.
  struct ValueRows {
    tensor::Range current, delayed;
  };
  ValueRows value_rows() const;
  /// The channels of both convolutions: those of this rank's query heads, and those of its key heads.
  tensor::Part latent_part(const tensor::Shape& rest) const;
  double mix_flops(int64_t latents) const;

  layers::CcaAttention attention_;
};

}  // namespace ingot::models
