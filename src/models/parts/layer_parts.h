// Of which parts a layer is made. A family says so for each of its layers; the settings model.mixers and model.feed_forwards put others
// in their place, so that a hybrid of known parts is a configuration.
//
// A new kind of part: its file in this folder, its name here, and a case in layer_parts.cpp.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/gate.h"
#include "models/parts/feed_forward.h"
#include "models/parts/linear_mixer.h"
#include "models/parts/norm.h"
#include "models/parts/residual.h"
#include "models/parts/softmax_mixer.h"
#include "models/parts/token_mixer.h"

namespace ingot::models {

enum class Mixer { softmax, cca, linear, latent };
enum class FeedForwardKind { mlp, moe };
enum class RouterKind { linear, zaya };

struct LayerParts {
  bool operator==(const LayerParts&) const = default;

  Mixer mixer = Mixer::softmax;
  FeedForwardKind feed_forward = FeedForwardKind::mlp;
  ResidualStyle residual = ResidualStyle::plain;
  QkNorm qk_norm = QkNorm::none;  // of softmax attention, as the next
  bool is_gated = false, has_sinks = false;
  bool has_qkv_biases = false;  // of queries, keys and values alone, whatever model.attention_bias says
  LinearMixer::Options linear{};
  RouterKind router = RouterKind::linear;  // of an MoE
  NormPlacement norms = NormPlacement::before;
  NormWeight norm_weight = NormWeight::plain;  // of all norms, q's and k's, too
  kernels::Gate gate = kernels::Gate::silu;    // of an MLP and of experts
  bool has_moe_biases = false;                 // of experts and of a linear router
  bool gates_shared_expert = false;            // by a sigmoid of the stream
};

/// Names in the settings.
const std::vector<std::string>& mixer_names();
const std::vector<std::string>& feed_forward_names();

/// Of every layer of a model of this configuration. Throws ConfigError for names that do not exist.
std::vector<LayerParts> layer_parts(const ModelConfig& config);

/// Layers so far apart are of the same parts and attend as far; only what follows the first router may still differ.
int64_t block_period(const ModelConfig& config);

std::unique_ptr<TokenMixer> make_mixer(const LayerParts& parts, const BlockContext& block, int64_t layer);
/// `follows_router`: a layer before has a router.
std::unique_ptr<FeedForward> make_feed_forward(const LayerParts& parts, const BlockContext& block, int64_t layer, bool follows_router);

}  // namespace ingot::models
