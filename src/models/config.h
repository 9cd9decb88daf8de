// The shape of a model, whatever its family. A family reads the fields it knows and refuses what it cannot do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"

namespace ingot::models {

struct ModelConfig {
  bool operator==(const ModelConfig&) const = default;

  std::string family = "zaya1";
  int64_t layers = 6, hidden = 256, vocab_size = 4096;
  int64_t heads = 4, kv_heads = 2, head_dim = 0;  // head_dim 0: hidden / heads
  int64_t ffn = 0;                                // of a dense MLP
  bool tie_embeddings = true;
  double norm_eps = 1e-5;

  // Parts in place of the family's (parts/layer_parts.h), repeated over the depth; empty = the family's.
  std::vector<std::string> mixers, feed_forwards;

  std::vector<std::string> layer_types;  // "full", "sliding" or "nope" (full, no RoPE), repeated over the depth; empty = all full
  int64_t window = 0;                    // of sliding layers, itself included
  double rope_base = 10000, rope_base_sliding = 10000, rope_fraction = 1;
  std::string rope_scaling = "none";  // none, linear, llama3, yarn, longrope
  double rope_factor = 1, rope_low_frequency_factor = 1, rope_high_frequency_factor = 4;
  bool rope_scaling_sliding = true;  // sliding layers, too
  // yarn: frequencies that turn so often within rope_original_positions are kept, or stretched; between, both.
  double rope_beta_fast = 32, rope_beta_slow = 1;
  bool rope_truncate = true;                                  // the border channels are rounded outwards
  double rope_attention_factor = 1;                           // what RoPE's cosines and sines are multiplied by
  std::vector<double> rope_short_factors, rope_long_factors;  // longrope: layers::RotarySettings
  int64_t rope_original_positions = 8192, max_positions = 131072;
  bool attention_bias = false, mlp_bias = false;
  double softmax_scale = 0;               // of attention's scores; 0 = 1 / sqrt(head_dim)
  double score_cap = 0;                   // softmax attention's scores become cap * tanh(score / cap); 0 = they stay
  double embedding_scale = 0;             // what embeddings are multiplied by; 0 = as the family has it
  double residual_scale = 1;              // what branches are multiplied by before they join the residual stream
  double logit_scale = 1, logit_cap = 0;  // logits are multiplied by the one, and kept within the other by a tanh; 0 = they are not

  // Maximal update parametrisation (docs/mup.md): the width at which initial values and learning rates are the settings'; 0 = at any.
  int64_t mup_base_hidden = 0;
  int64_t mtp_layers = 0;  // blocks behind the last one, each of which predicts one token further (model.h)

  // linear_llama: which layers mix tokens by linear (L) and which by softmax attention (N), repeated over the depth.
  std::string layer_pattern = "LLLN";
  std::string linear_attention = "gated_delta", feature_map = "l2";
  int64_t linear_heads = 0, linear_key_heads = 0;    // 0: heads; linear_heads
  int64_t linear_key_dim = 0, linear_value_dim = 0;  // of a head; 0: head_dim
  int64_t short_convolution = 4;                     // tokens that it sees; 0 = none
  int64_t gate_rank = 16;                            // of the projection to gates per channel
  bool linear_output_gate = true;
  int64_t output_gate_rank = 0;  // of the projection to the output gate; 0 = a whole matrix

  // Multi-head latent attention: head_dim is that of queries and keys, of which rope_head_dim rotate.
  int64_t query_rank = 0, kv_rank = 0, rope_head_dim = 0, value_head_dim = 0;  // query_rank 0: queries straight from the stream

  int64_t experts = 8, top_k = 1, expert_ffn = 256, router_hidden = 64;
  bool norm_topk_prob = true;                        // the weights of a token's experts sum to 1
  std::string router_score = "softmax";              // softmax, sigmoid; not of zaya1's router, nor are the next three
  int64_t router_groups = 1, router_top_groups = 1;  // a token's experts are of this many of so many groups
  double router_scale = 1;                           // of the weights of a token's experts
  int64_t shared_expert_ffn = 0;                     // inner width of an expert that every token goes to; 0 = none
  int64_t first_dense_layers = 0;                    // layers before the first mixture (deepseek_v3, kimi_linear)
  double expert_capacity = 0;                        // slots of an expert, in shares of all slots alike; 0 = as many as choose it
  bool skip_class = true;                            // one more class than experts: the token skips the mixture
  std::string skip_output = "zero";                  // zero, identity (p * x)
  bool force_balance = false;                        // benchmarks: tokens go to the experts in turn, whatever the router says
  double skip_bias = -1;                             // initial balancing bias of the skip class

  bool bidirectional = false;  // an encoder: tokens see those behind them, too
  // Drafts of so many tokens in one pass behind every prefix (docs/objectives.md); 0 = none. They are made of the token draft_mask_id.
  int64_t draft_block = 0, draft_mask_id = 0;

  // LoRA: the model is frozen, and matrices of these names get low-rank adapters (adapters.h); empty = all that can have one.
  int64_t lora_rank = 0;
  double lora_alpha = 16;  // what an adapter adds is multiplied by alpha / rank
  std::vector<std::string> lora_targets;

  double init_std = 0.02;
  int64_t pad_id = 0, bos_id = 2, eos_id = 1;  // -1 = none

  int64_t resolved_head_dim() const { return head_dim > 0 ? head_dim : hidden / (heads > 0 ? heads : 1); }
  std::string layer_type(int64_t layer) const;
  bool is_sliding(int64_t layer) const { return layer_type(layer) == "sliding"; }
  int64_t resolved_linear_heads() const { return linear_heads > 0 ? linear_heads : heads; }
  int64_t resolved_linear_key_heads() const { return linear_key_heads > 0 ? linear_key_heads : resolved_linear_heads(); }
  int64_t resolved_linear_key_dim() const { return linear_key_dim > 0 ? linear_key_dim : resolved_head_dim(); }
  int64_t resolved_linear_value_dim() const { return linear_value_dim > 0 ? linear_value_dim : resolved_head_dim(); }
  int64_t resolved_value_head_dim() const { return value_head_dim > 0 ? value_head_dim : resolved_head_dim(); }
  int64_t window_of(int64_t layer) const { return is_sliding(layer) ? window : 0; }
  /// How many times wider than at the base; 1 without μP.
  double mup_width() const { return mup_base_hidden > 0 ? static_cast<double>(hidden) / static_cast<double>(mup_base_hidden) : 1; }
  double rope_base_of(int64_t layer) const { return is_sliding(layer) ? rope_base_sliding : rope_base; }
};

/// The group `model` of the settings.
void declare_settings(base::SettingsTable& table, ModelConfig& config);

/// Checks that hold for every family (positive sizes, heads, layer types). Throws ConfigError naming the setting and what would work.
void check_common(const ModelConfig& config);

/// Throws ConfigError "model.<name> is …" when `value` is not a positive multiple of `divisor`, with the nearest good values.
void require_multiple(const char* name, int64_t value, int64_t divisor, const char* divisor_name);

}  // namespace ingot::models
