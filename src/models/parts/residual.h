// How the halves of a block meet the residual stream: by a plain sum, or with learned scales and biases on both sides (ZAYA1).
#pragma once

#include "kernels/norm.h"
#include "models/parts/block_context.h"

namespace ingot::models {

enum class ResidualStyle { plain, scaled };

class ResidualAdd {
 public:
  explicit ResidualAdd(ResidualStyle style = ResidualStyle::plain) : style_(style) {}

  /// `prefix`: of the names of this one's vectors.
  void declare(const BlockContext& block, const std::string& prefix) {
    if (style_ == ResidualStyle::plain) return;
    const int64_t hidden = block.config().hidden;
    residual_scale_ = &block.vector(prefix + "residual_scale", hidden, 1);
    residual_bias_ = &block.vector(prefix + "residual_bias", hidden, 0);
    branch_scale_ = &block.vector(prefix + "hidden_states_scale", hidden, 1);
    branch_bias_ = &block.vector(prefix + "hidden_states_bias", hidden, 0);
  }

  /// For kernels::join_residual; all undefined in the plain style.
  kernels::ResidualScale values() const {
    if (style_ == ResidualStyle::plain) return {};
    return {residual_scale_->value, residual_bias_->value, branch_scale_->value, branch_bias_->value};
  }
  bool is_scaled() const { return style_ == ResidualStyle::scaled; }

 private:
  ResidualStyle style_;
  layers::Parameter *residual_scale_ = nullptr, *residual_bias_ = nullptr, *branch_scale_ = nullptr, *branch_bias_ = nullptr;
};

/// The same of the embedding: (x + bias) * scale in the scaled style.
class InputScale {
 public:
  void declare(const BlockContext& block, const std::string& prefix, bool is_at_both_ends) {
    scale_ = &block.vector(prefix + "scale", block.config().hidden, 1);
    bias_ = &block.vector(prefix + "bias", block.config().hidden, 0);
    scale_->is_at_both_ends = bias_->is_at_both_ends = is_at_both_ends;
  }
  at::Tensor operator()(const at::Tensor& x) const { return scale_ ? (x + bias_->value) * scale_->value : x; }

 private:
  layers::Parameter *scale_ = nullptr, *bias_ = nullptr;
};

}  // namespace ingot::models
