#include "models/parts/latent_mixer.h"

#include <cmath>

#include "base/error.h"
#include "kernels/norm.h"
#include "layers/linear.h"
#include "models/hugging_face_config.h"
#include "models/parts/biases.h"

namespace ingot::models {
namespace {

constexpr double kLatentNormEps = 1e-6;  // transformers' for the norms of latents, whatever rms_norm_eps is

}  // namespace

LatentMixer::LatentMixer(const BlockContext& block, int64_t layer) : TokenMixer(block, layer) {
  const auto& c = config();
  schedule().require_local("latent attention");
  require_one_rank_for_rows();
  if (c.kv_heads != c.heads)
    throw base::ConfigError("model.kv_heads = {}: latent attention makes keys and values for each of model.heads = {}", c.kv_heads,
                            c.heads);
  if (c.kv_rank < 1) throw base::ConfigError("model.kv_rank = {}: latent attention needs a positive one", c.kv_rank);
  const int64_t head_dim = c.resolved_head_dim();
  if (c.rope_head_dim < 2 || c.rope_head_dim % 2 != 0 || c.rope_head_dim > head_dim)
    throw base::ConfigError("model.rope_head_dim = {} must be even, and 2 to model.head_dim = {}", c.rope_head_dim, head_dim);
  if (c.value_head_dim > head_dim)
    throw base::ConfigError("model.value_head_dim = {} is more than model.head_dim = {}", c.value_head_dim, head_dim);
  block.require_uncapped("latent attention");
  if (config().rope_scaling == "longrope") throw base::ConfigError("model.rope_scaling = longrope: latent attention has none of it");
  block.require_heads();
  schedule().require_shares("heads", c.heads);
}

void LatentMixer::declare(const std::string& layer_prefix) {
  const auto& c = config();
  const std::string prefix = layer_prefix + "self_attn.";
  const int64_t d = c.resolved_head_dim(), v = c.resolved_value_head_dim(), query = c.query_rank > 0 ? c.query_rank : c.hidden;
  if (c.query_rank > 0) {
    query_down_ = &block_.matrix(prefix + "q_a_proj.weight", {query, c.hidden});
    query_norm_ = &block_.vector(prefix + "q_a_layernorm.weight", query, 1);
  }
  kv_down_ = &block_.matrix(prefix + "kv_a_proj_with_mqa.weight", {c.kv_rank + c.rope_head_dim, c.hidden});
  kv_norm_ = &block_.vector(prefix + "kv_a_layernorm.weight", c.kv_rank, 1);
  if (c.attention_bias) {
    if (query_down_) query_down_bias_ = &block_.vector(prefix + "q_a_proj.bias", query, 0);
    kv_down_bias_ = &block_.vector(prefix + "kv_a_proj_with_mqa.bias", c.kv_rank + c.rope_head_dim, 0);
    out_bias_ = &block_.vector(prefix + "o_proj.bias", c.hidden, 0);
  }
  const auto by_heads = [&](const char* name, int64_t rows, int64_t cols, BlockContext::FanIn fan_in) {
    return &block_.matrix(prefix + name + ".weight", {rows, cols}, block_.cut_rows(rows, cols), fan_in);
  };
  const auto of_latent = BlockContext::FanIn::fixed, of_query = query_down_ ? of_latent : BlockContext::FanIn::grows;
  attention_ = {.heads = schedule().local_heads(c.heads),
                .head_dim = d,
                .rope_dim = c.rope_head_dim,
                .value_dim = v,
                .window = c.window_of(layer_),
                .rotary = rotary_settings(c, layer_),
                .scale = c.softmax_scale > 0 ? c.softmax_scale : 1 / std::sqrt(static_cast<double>(d)),
                .q = by_heads(query_down_ ? "q_b_proj" : "q_proj", c.heads * d, query, of_query),
                .kv = by_heads("kv_b_proj", c.heads * (d - c.rope_head_dim + v), c.kv_rank, of_latent),
                .o = &block_.matrix(prefix + "o_proj.weight", {c.hidden, c.heads * v}, block_.cut_columns(c.hidden, c.heads * v))};
  if (attention_.rotary.rotated > 0) attention_.rotary.rotated = c.rope_head_dim;
}

at::Tensor LatentMixer::watch_scores(at::Device device) {
  return attention_.largest_scores = layers::no_scores_yet(attention_.heads, device);
}

// Of a head's own channels queries and keys take the root each; the key that rotates is all heads', so that the queries take all.
std::vector<layers::RowFactors> LatentMixer::clip_scores(const at::Tensor& gamma) const {
  const auto& a = attention_;
  const auto root = gamma.sqrt().unsqueeze(1), whole = gamma.unsqueeze(1);
  const auto rows = [](const std::vector<at::Tensor>& of_head) { return device::cat(of_head, 1).flatten(); };
  const int64_t plain = a.head_dim - a.rope_dim;
  return {{a.q, rows({whole.expand({-1, a.rope_dim}), root.expand({-1, plain})})},
          {a.kv, rows({root.expand({-1, plain}), at::ones({a.heads, a.value_dim}, gamma.options())})}};
}

at::Tensor LatentMixer::mix(const at::Tensor& normed, ForwardContext& context) const {
  auto& sequences = *context.sequences;
  const auto dtype = normed.scalar_type();
  const auto down = [&](std::vector<layers::Parameter*> weights, std::vector<layers::Parameter*> biases) {
    if (biases.front() == nullptr) biases.clear();
    return layers::linear(normed, weights, biases);
  };
  const auto of_norm = [&](const at::Tensor& latent, const layers::Parameter& norm) {
    return schedule().enter(kernels::rms_norm(latent, norm.value, kLatentNormEps, dtype), sequences);
  };
  const int64_t rank = config().kv_rank, query_rank = query_down_ ? config().query_rank : 0;
  const auto latents = query_down_ ? down({query_down_, kv_down_}, {query_down_bias_, kv_down_bias_}) : down({kv_down_}, {kv_down_bias_});
  const auto query = query_down_ ? of_norm(latents.narrow(-1, 0, query_rank), *query_norm_) : schedule().enter(normed, sequences);
  const auto latent = of_norm(latents.narrow(-1, query_rank, rank), *kv_norm_);
  const auto key = schedule().enter(latents.narrow(-1, query_rank + rank, config().rope_head_dim), sequences);
  return with_bias(schedule().leave(attention_(query, latent, key, sequences, caches_in(context))), out_bias_);
}

}  // namespace ingot::models
