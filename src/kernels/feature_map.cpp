#include "kernels/feature_map.h"

#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels {

const std::vector<std::string>& feature_map_names() {
  static const std::vector<std::string> names = {"identity", "silu", "elu", "relu", "taylor", "rebased", "l2"};  // as the enum
  return names;
}

FeatureMap feature_map_from_name(const std::string& name) {
  const auto& names = feature_map_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw base::ConfigError("unknown feature map '{}'; known are {}{}", name, base::join(names, ", "), base::did_you_mean(name, names));
  return static_cast<FeatureMap>(found - names.begin());
}

int64_t feature_dim(FeatureMap map, int64_t dim) { return map == FeatureMap::taylor ? 1 + dim + dim * dim : dim; }

at::Tensor feature_map(const at::Tensor& x, FeatureMap map, const at::Tensor& scale, const at::Tensor& bias) {
  if (map == FeatureMap::identity) return x;
  const auto dtype = x.scalar_type();
  const auto wide = x.to(reference::accumulation_type(dtype));
  const int64_t heads = x.size(-2), dim = x.size(-1);
  switch (map) {
    case FeatureMap::silu: return at::silu(x);
    case FeatureMap::elu: return (at::elu(wide) + 1).to(dtype);
    case FeatureMap::relu: return at::relu(x);
    case FeatureMap::taylor: {
      const double root = std::sqrt(static_cast<double>(dim));
      const auto squares = (wide.unsqueeze(-1) * wide.unsqueeze(-2)).flatten(-2) / (std::sqrt(2.0) * root);
      return device::cat({at::ones_like(wide.narrow(-1, 0, 1)), wide / std::sqrt(root), squares}, -1).to(dtype);
    }
    case FeatureMap::rebased: return (at::layer_norm(wide, {dim}) * scale.view({heads, dim}) + bias.view({heads, dim})).square().to(dtype);
    default: return (wide * (wide.square().sum(-1, true) + 1e-6).rsqrt()).to(dtype);
  }
}

}  // namespace ingot::kernels
