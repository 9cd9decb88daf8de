// Feature maps of linear attention, which stand in for the exponential of softmax attention: q and k go through one before
// they meet. Computed in fp32 for narrower floats. Differentiable by autograd.
#pragma once

#include <string>
#include <vector>

#include "device/aten.h"

namespace ingot::kernels {

enum class FeatureMap {
  identity,
  silu,
  elu,      // elu(x) + 1 (Katharopoulos et al. 2020)
  relu,     //
  taylor,   // 1, x / d^(1/4), x ⊗ x / sqrt(2 d): products are 1 + s + s^2 / 2 of s = q·k / sqrt(d), Based (Arora et al. 2024)
  rebased,  // (scale * normed x + bias)^2 with x normed to mean 0 and variance 1, ReBased (Aksenov et al. 2024)
  l2,       // x / sqrt(|x|^2 + 1e-6), for the delta rule
};

FeatureMap feature_map_from_name(const std::string& name);
const std::vector<std::string>& feature_map_names();

/// Channels that come out for `dim` that go in.
int64_t feature_dim(FeatureMap map, int64_t dim);

/// x [..., heads, dim] -> [..., heads, feature_dim], dtype of x. `scale` and `bias` [heads * dim]: only of rebased.
at::Tensor feature_map(const at::Tensor& x, FeatureMap map, const at::Tensor& scale = {}, const at::Tensor& bias = {});

}  // namespace ingot::kernels
