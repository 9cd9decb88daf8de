#include "models/config.h"

#include "base/error.h"
#include "base/text.h"
#include "kernels/feature_map.h"
#include "layers/linear_attention.h"
#include "models/family.h"

namespace ingot::models {

using base::at_least;
using base::ConfigError;
using base::NumberRange;

std::string ModelConfig::layer_type(int64_t layer) const {
  return layer_types.empty() ? "full" : layer_types[static_cast<size_t>(layer) % layer_types.size()];
}

void declare_settings(base::SettingsTable& table, ModelConfig& c) {
  table.add("model.family", c.family, family_names(), "architecture");
  table.add("model.layers", c.layers, at_least(1), "number of blocks");
  table.add("model.hidden", c.hidden, at_least(1), "width of the residual stream");
  table.add("model.vocab_size", c.vocab_size, at_least(2), "rows of the embedding");
  table.add("model.heads", c.heads, at_least(1), "query heads");
  table.add("model.kv_heads", c.kv_heads, at_least(1), "key and value heads; divides heads");
  table.add("model.head_dim", c.head_dim, at_least(0), "channels of a head; 0 = hidden / heads");
  table.add("model.ffn", c.ffn, at_least(0), "inner width of a dense MLP");
  table.add("model.tie_embeddings", c.tie_embeddings, "the head uses the embedding's weights");
  table.add("model.norm_eps", c.norm_eps, NumberRange{0, 1}, "epsilon of every RMSNorm");
  table.add(
      "model.mixers", c.mixers,
      fmt::format("{}, repeated over the depth, in place of the family's token mixers; empty = those", base::join(mixer_names(), ", ")));
  table.add("model.feed_forwards", c.feed_forwards,
            fmt::format("{}, repeated over the depth, in place of the family's feed-forwards; empty = those",
                        base::join(feed_forward_names(), ", ")));
  table.add("model.layer_types", c.layer_types, "full, sliding or nope (full and without RoPE), repeated over the depth; empty = all full");
  table.add("model.window", c.window, at_least(0), "tokens a sliding layer sees, itself included");
  table.add("model.rope_base", c.rope_base, NumberRange{1, 1e15}, "RoPE base of full layers");
  table.add("model.rope_base_sliding", c.rope_base_sliding, NumberRange{1, 1e15}, "RoPE base of sliding layers");
  table.add("model.rope_fraction", c.rope_fraction, NumberRange{0, 1}, "share of a head's channels that rotate");
  table.add("model.rope_scaling", c.rope_scaling, {"none", "linear", "llama3", "yarn", "longrope"},
            "stretching of the frequencies for longer contexts");
  table.add("model.rope_scaling_sliding", c.rope_scaling_sliding, "stretch the frequencies of sliding layers, too");
  table.add("model.rope_factor", c.rope_factor, NumberRange{1e-6, 1e6}, "by how much");
  table.add("model.rope_low_frequency_factor", c.rope_low_frequency_factor, NumberRange{0, 1e6}, "llama3 scaling");
  table.add("model.rope_high_frequency_factor", c.rope_high_frequency_factor, NumberRange{0, 1e6}, "llama3 scaling");
  table.add("model.rope_beta_fast", c.rope_beta_fast, NumberRange{1e-3, 1e6},
            "yarn: turns within the original context from which on a frequency is kept");
  table.add("model.rope_beta_slow", c.rope_beta_slow, NumberRange{1e-3, 1e6}, "yarn: turns up to which a frequency is stretched");
  table.add("model.rope_truncate", c.rope_truncate, "yarn: round the channels of both borders outwards");
  table.add("model.rope_attention_factor", c.rope_attention_factor, NumberRange{1e-6, 1e6},
            "yarn, longrope: what cosines and sines are multiplied by");
  table.add("model.rope_short_factors", c.rope_short_factors, NumberRange{1e-3, 1e6},
            "longrope: what the frequency of each pair of channels is divided by in rows of up to rope_original_positions");
  table.add("model.rope_long_factors", c.rope_long_factors, NumberRange{1e-3, 1e6}, "longrope: the same in longer rows");
  table.add("model.rope_original_positions", c.rope_original_positions, at_least(1), "context before stretching");
  table.add("model.max_positions", c.max_positions, at_least(1), "longest context, for the exported config");
  table.add("model.attention_bias", c.attention_bias, "biases on q, k, v and o (llama)");
  table.add("model.mlp_bias", c.mlp_bias, "biases in the MLP (llama)");
  table.add("model.softmax_scale", c.softmax_scale, NumberRange{0, 1e3},
            "what attention's scores are multiplied by; 0 = 1 / sqrt(head_dim)");
  table.add("model.score_cap", c.score_cap, NumberRange{0, 1e3},
            "softcap of attention's scores, which become cap * tanh(score / cap); 0 = they stay");
  table.add("model.embedding_scale", c.embedding_scale, NumberRange{0, 1e6},
            "what embeddings are multiplied by; 0 = as the family has it, 1 or sqrt(hidden) (gemma2, gemma3_text)");
  table.add("model.residual_scale", c.residual_scale, NumberRange{0, 1e6}, "what each branch is multiplied by before it joins the stream");
  table.add("model.logit_scale", c.logit_scale, NumberRange{1e-6, 1e6}, "what logits are multiplied by");
  table.add("model.logit_cap", c.logit_cap, NumberRange{0, 1e6}, "logits become cap * tanh(logits / cap); 0 = they stay");
  table.add("model.mup_base_hidden", c.mup_base_hidden, at_least(0),
            "maximal update parametrisation: the model.hidden that init_std and optimizer.lr were found for; 0 = off");
  table.add("model.mtp_layers", c.mtp_layers, {0, 16}, "multi-token prediction: blocks that each predict one token further");
  table.add("model.query_rank", c.query_rank, at_least(0), "latent attention: channels of the queries' latent; 0 = none");
  table.add("model.kv_rank", c.kv_rank, at_least(0), "latent attention: channels of the keys' and values' latent");
  table.add("model.rope_head_dim", c.rope_head_dim, at_least(0),
            "latent attention: channels of a head's query and key that rotate; all heads' keys share them");
  table.add("model.value_head_dim", c.value_head_dim, at_least(0), "latent attention: value channels of a head; 0 = head_dim");
  table.add("model.layer_pattern", c.layer_pattern,
            "linear_llama, qwen3_next, kimi_linear: L linear, N softmax attention, repeated over the depth");
  table.add("model.linear_attention", c.linear_attention, layers::linear_variant_names(),
            "linear attention: what decays and corrects a state");
  table.add("model.feature_map", c.feature_map, kernels::feature_map_names(), "linear attention: what q and k go through");
  table.add("model.linear_heads", c.linear_heads, at_least(0), "linear attention: heads of values and gates; 0 = heads");
  table.add("model.linear_key_heads", c.linear_key_heads, at_least(0),
            "linear attention: heads of queries and keys, each for some neighbouring heads of values; 0 = linear_heads");
  table.add("model.linear_key_dim", c.linear_key_dim, at_least(0), "linear attention: key channels of a head; 0 = head_dim");
  table.add("model.linear_value_dim", c.linear_value_dim, at_least(0), "linear attention: value channels of a head; 0 = head_dim");
  table.add("model.short_convolution", c.short_convolution, at_least(0),
            "linear attention: tokens that the convolution of q, k and v sees; 0 = none");
  table.add("model.gate_rank", c.gate_rank, at_least(1), "linear attention: rank of the projection to diagonal gates");
  table.add("model.linear_output_gate", c.linear_output_gate, "linear attention: a gate on what linear attention gives");
  table.add("model.output_gate_rank", c.output_gate_rank, at_least(0),
            "linear attention: rank of the projection to that gate; 0 = a whole matrix");
  table.add("model.experts", c.experts, at_least(1), "experts per layer");
  table.add("model.top_k", c.top_k, at_least(1), "experts per token");
  table.add("model.norm_topk_prob", c.norm_topk_prob, "the weights of a token's experts sum to 1; not of zaya1's router");
  table.add("model.router_score", c.router_score, {"softmax", "sigmoid"}, "what a router's logits go through; not of zaya1's router");
  table.add("model.router_groups", c.router_groups, at_least(1), "groups of neighbouring experts; not of zaya1's router");
  table.add("model.router_top_groups", c.router_top_groups, at_least(1), "groups from which a token's experts may come");
  table.add("model.router_scale", c.router_scale, NumberRange{1e-6, 1e6},
            "what the weights of a token's experts are multiplied by; not of zaya1's router");
  table.add("model.shared_expert_ffn", c.shared_expert_ffn, at_least(0), "inner width of an expert that every token goes to; 0 = none");
  table.add("model.first_dense_layers", c.first_dense_layers, at_least(0),
            "deepseek_v3, kimi_linear: layers with an MLP in place of the mixture, from the first on");
  table.add(
      "model.expert_capacity", c.expert_capacity, NumberRange{0, 1e6},
      "slots that an expert takes, in shares of all slots alike; of more those with the smallest weights are dropped; 0 = all are taken");
  table.add("model.expert_ffn", c.expert_ffn, at_least(1), "inner width of an expert");
  table.add("model.router_hidden", c.router_hidden, at_least(1), "width of the router");
  table.add("model.skip_class", c.skip_class, "zaya1: tokens may skip the mixture");
  table.add("model.skip_output", c.skip_output, {"zero", "identity"}, "zaya1: what a skipped token yields, 0 or p * x");
  table.add("model.force_balance", c.force_balance, "benchmarks only: tokens go to the experts in turn, whatever the router says");
  table.add("model.skip_bias", c.skip_bias, NumberRange{}, "zaya1: initial balancing bias of the skip class");
  table.add("model.bidirectional", c.bidirectional,
            "an encoder: tokens see those behind them, too, and data.mask_rate of them are learned");
  table.add("model.draft_block", c.draft_block, {0, 1 << 16},
            "block diffusion: tokens that the model also learns to draft in one pass, from masks behind a prefix; 0 = none, 16 is ZAYA1's");
  table.add("model.draft_mask_id", c.draft_mask_id, at_least(0), "block diffusion: id of the token that stands for one to be drafted");
  table.add("model.lora_rank", c.lora_rank, at_least(0), "LoRA: rank of the adapters that are trained in place of the model; 0 = off");
  table.add("model.lora_alpha", c.lora_alpha, NumberRange{1e-6, 1e6}, "LoRA: what an adapter adds is multiplied by alpha / rank");
  table.add("model.lora_targets", c.lora_targets, "LoRA: matrices with an adapter, as q_proj or down_proj; empty = all that can have one");
  table.add("model.init_std", c.init_std, NumberRange{0, 10}, "standard deviation of initial matrices");
  table.add("model.pad_id", c.pad_id, at_least(-1), "token id of padding; -1 = none");
  table.add("model.bos_id", c.bos_id, at_least(-1), "token id that begins a document; -1 = none");
  table.add("model.eos_id", c.eos_id, at_least(-1), "token id that ends a document; -1 = none");
}

void require_multiple(const char* name, int64_t value, int64_t divisor, const char* divisor_name) {
  if (value > 0 && value % divisor == 0) return;
  const int64_t below = value / divisor * divisor, above = below + divisor;
  throw ConfigError("model.{} = {} is not a multiple of {} ({}); {}{} would work", name, value, divisor, divisor_name,
                    below > 0 ? fmt::format("{} or ", below) : "", above);
}

void check_common(const ModelConfig& c) {
  if (c.layers < 1 || c.hidden < 1 || c.vocab_size < 2 || c.heads < 1 || c.kv_heads < 1)
    throw ConfigError("model.layers, hidden, vocab_size, heads and kv_heads must be positive");
  // Far beyond any model, far below where products of two sizes overflow.
  for (const int64_t size : {c.layers,
                             c.hidden,
                             c.vocab_size,
                             c.heads,
                             c.kv_heads,
                             c.head_dim,
                             c.ffn,
                             c.experts,
                             c.expert_ffn,
                             c.router_hidden,
                             c.linear_key_dim,
                             c.linear_value_dim,
                             c.linear_heads,
                             c.linear_key_heads,
                             c.short_convolution,
                             c.gate_rank,
                             c.query_rank,
                             c.kv_rank,
                             c.rope_head_dim,
                             c.value_head_dim,
                             c.shared_expert_ffn,
                             c.output_gate_rank,
                             c.mup_base_hidden,
                             c.lora_rank}) {
    if (size > (int64_t{1} << 30)) throw ConfigError("a size of the model is {}; sizes above 2^30 are not possible", size);
  }
  if (c.head_dim == 0) require_multiple("hidden", c.hidden, c.heads, "model.heads, as model.head_dim is 0");
  require_multiple("heads", c.heads, c.kv_heads, "model.kv_heads");
  for (const auto& type : c.layer_types) {
    if (type != "full" && type != "sliding" && type != "nope")
      throw ConfigError("model.layer_types has '{}'; it takes full, sliding and nope{}", type,
                        base::did_you_mean(type, {"full", "sliding", "nope"}));
    if (type == "sliding" && c.window < 1) throw ConfigError("model.layer_types has sliding layers, but model.window is {}", c.window);
  }
  const double rotated = static_cast<double>(c.resolved_head_dim()) * c.rope_fraction;
  if (static_cast<int64_t>(rotated) % 2 != 0)
    throw ConfigError("model.rope_fraction = {} of a head of {} channels is {}, which must be even", c.rope_fraction, c.resolved_head_dim(),
                      rotated);
  for (const auto& [name, factors] : {std::pair{"short", &c.rope_short_factors}, {"long", &c.rope_long_factors}})
    if (factors->size() != (c.rope_scaling == "longrope" ? static_cast<size_t>(rotated) / 2 : 0))
      throw ConfigError(
          "model.rope_{}_factors has {} numbers; rope_scaling = longrope has one for each of {} pairs of channels, others have none", name,
          factors->size(), static_cast<int64_t>(rotated) / 2);
  if (c.bidirectional && c.draft_block > 0)
    throw ConfigError("model.draft_block = {}: drafts follow a prefix, and an encoder has none", c.draft_block);
  for (const int64_t id : {c.pad_id, c.bos_id, c.eos_id, c.draft_block > 0 ? c.draft_mask_id : -1}) {
    if (id >= c.vocab_size) throw ConfigError("a special token has the id {}, but model.vocab_size is {}", id, c.vocab_size);
  }
}

}  // namespace ingot::models
