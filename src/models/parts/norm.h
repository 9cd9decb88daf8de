// RMSNorm of the residual stream, of a branch or of heads, and where a block has them.
#pragma once

#include "kernels/norm.h"
#include "models/parts/block_context.h"

namespace ingot::models {

/// Of a block's two branches: before each (Llama), behind each (OLMo 2), or both (Gemma).
enum class NormPlacement { before, after, around };
/// What multiplies: the weight, which starts at 1, or 1 + weight, which starts at 0 (Gemma).
enum class NormWeight { plain, zero_centred };

/// A norm that may be absent: undeclared, it is the identity, rounded to the dtype of the computation.
class Norm {
 public:
  void declare(const BlockContext& block, const std::string& name, NormWeight style) {
    weight_ = &block.vector(name, block.config().hidden, style == NormWeight::plain ? 1 : 0);
    style_ = style;
  }
  /// The one before the head. μP makes logits of a wider model smaller: here, so that a folder needs no more than the weight.
  void declare_last(const BlockContext& block, const std::string& name, NormWeight style) {
    declare(block, name, style);
    scale_ = block.config().logit_scale;
    weight_->width = block.config().mup_width();
    weight_->initial = tensor::Initial::constant(1 / weight_->width - (style == NormWeight::plain ? 0 : 1));
  }
  bool is_there() const { return weight_ != nullptr; }
  at::Tensor weight() const {
    const auto weight = style_ == NormWeight::plain ? weight_->value : weight_->value + 1;
    return scale_ == 1 ? weight : weight * scale_;
  }
  at::Tensor operator()(const at::Tensor& x, const BlockContext& block) const {
    return is_there() ? kernels::rms_norm(x, weight(), block.config().norm_eps, block.dtype()) : x.to(block.dtype());
  }

 private:
  layers::Parameter* weight_ = nullptr;
  NormWeight style_ = NormWeight::plain;
  double scale_ = 1;
};

}  // namespace ingot::models
