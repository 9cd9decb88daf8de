#include "models/parts/layer_parts.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "models/family.h"
#include "models/parts/cca_mixer.h"
#include "models/parts/latent_mixer.h"
#include "models/parts/linear_mixer.h"
#include "models/parts/linear_router.h"
#include "models/parts/mlp.h"
#include "models/parts/moe.h"
#include "models/parts/zaya_router.h"

namespace ingot::models {
namespace {

// The kind that a setting, repeated over the depth, names for a layer.
template <class Kind>
Kind kind_of(const char* setting, const std::vector<std::string>& pattern, int64_t layer, const std::vector<std::string>& names) {
  const auto& name = pattern[static_cast<size_t>(layer) % pattern.size()];
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw base::ConfigError("model.{} has '{}'; it takes {}{}", setting, name, base::join(names, ", "), base::did_you_mean(name, names));
  return static_cast<Kind>(found - names.begin());
}

}  // namespace

const std::vector<std::string>& mixer_names() {
  static const std::vector<std::string> names = {"softmax", "cca", "linear", "latent"};
  return names;
}

const std::vector<std::string>& feed_forward_names() {
  static const std::vector<std::string> names = {"mlp", "moe"};
  return names;
}

std::vector<LayerParts> layer_parts(const ModelConfig& config) {
  const auto pattern = family_named(config.family).parts(config);
  std::vector<LayerParts> layers;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    auto& parts = layers.emplace_back(pattern[static_cast<size_t>(layer) % pattern.size()]);
    if (!config.mixers.empty()) parts.mixer = kind_of<Mixer>("mixers", config.mixers, layer, mixer_names());
    if (!config.feed_forwards.empty())
      parts.feed_forward = kind_of<FeedForwardKind>("feed_forwards", config.feed_forwards, layer, feed_forward_names());
  }
  return layers;
}

int64_t block_period(const ModelConfig& config) {
  const auto parts = layer_parts(config);
  const auto is_alike = [&](int64_t a, int64_t b) {
    const auto &x = parts[static_cast<size_t>(a)], &y = parts[static_cast<size_t>(b)];
    return x == y && config.layer_type(a) == config.layer_type(b);
  };
  for (int64_t period = 1; period < config.layers; ++period) {
    bool repeats = true;
    for (int64_t layer = period; layer < config.layers && repeats; ++layer) repeats = is_alike(layer, layer - period);
    if (repeats) return period;
  }
  return config.layers;
}

std::unique_ptr<TokenMixer> make_mixer(const LayerParts& parts, const BlockContext& block, int64_t layer) {
  switch (parts.mixer) {
    case Mixer::softmax:
      return std::make_unique<SoftmaxMixer>(block, layer,
                                            SoftmaxMixer::Options{.qk_norm = parts.qk_norm,
                                                                  .norm_weight = parts.norm_weight,
                                                                  .is_gated = parts.is_gated,
                                                                  .has_sinks = parts.has_sinks,
                                                                  .has_qkv_biases = parts.has_qkv_biases});
    case Mixer::cca: return std::make_unique<CcaMixer>(block, layer);
    case Mixer::latent: return std::make_unique<LatentMixer>(block, layer);
    case Mixer::linear: return std::make_unique<LinearMixer>(block, layer, parts.linear);
  }
  return nullptr;
}

std::unique_ptr<FeedForward> make_feed_forward(const LayerParts& parts, const BlockContext& block, int64_t layer, bool follows_router) {
  if (parts.feed_forward == FeedForwardKind::mlp)
    return std::make_unique<Mlp>(block, layer, parts.gate, Mlp::Shape{.ffn = block.config().ffn});
  std::unique_ptr<Router> router;
  if (parts.router == RouterKind::zaya) router = std::make_unique<ZayaRouter>(block, /*is_first=*/!follows_router);
  else router = std::make_unique<LinearRouter>(block, parts.has_moe_biases);
  return std::make_unique<Moe>(
      block, layer, std::move(router),
      Moe::Options{.gate = parts.gate, .has_biases = parts.has_moe_biases, .gates_shared = parts.gates_shared_expert});
}

}  // namespace ingot::models
