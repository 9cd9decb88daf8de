#include "gguf/architecture.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "models/family.h"

namespace ingot::gguf {
namespace {

using base::ModelError;
using models::ModelConfig;
using Names = std::map<std::string, std::string>;

Names operator+(Names left, const Names& right) {
  left.insert(right.begin(), right.end());
  return left;
}

const Names kAttention = {{"self_attn.q_proj.weight", "attn_q.weight"}, {"self_attn.k_proj.weight", "attn_k.weight"},
                          {"self_attn.v_proj.weight", "attn_v.weight"}, {"self_attn.o_proj.weight", "attn_output.weight"},
                          {"self_attn.q_proj.bias", "attn_q.bias"},     {"self_attn.k_proj.bias", "attn_k.bias"},
                          {"self_attn.v_proj.bias", "attn_v.bias"}};
const Names kOutputBias = {{"self_attn.o_proj.bias", "attn_output.bias"}};
const Names kHeadNorms = {{"self_attn.q_norm.weight", "attn_q_norm.weight"}, {"self_attn.k_norm.weight", "attn_k_norm.weight"}};
const Names kMlp = {
    {"mlp.gate_proj.weight", "ffn_gate.weight"}, {"mlp.up_proj.weight", "ffn_up.weight"}, {"mlp.down_proj.weight", "ffn_down.weight"}};
const Names kMlpBiases = {
    {"mlp.gate_proj.bias", "ffn_gate.bias"}, {"mlp.up_proj.bias", "ffn_up.bias"}, {"mlp.down_proj.bias", "ffn_down.bias"}};
// Of gate_up_proj each half is a tensor, which tensors.cpp names.
const Names kExperts = {{"mlp.gate.weight", "ffn_gate_inp.weight"},
                        {"mlp.experts.gate_up_proj", "ffn_gate_exps.weight"},
                        {"mlp.experts.down_proj", "ffn_down_exps.weight"}};
const Names kExpertBiases = {{"mlp.gate.bias", "ffn_gate_inp.bias"},
                             {"mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias"},
                             {"mlp.experts.down_proj_bias", "ffn_down_exps.bias"}};
const Names kNormsBefore = {{"input_layernorm.weight", "attn_norm.weight"}, {"post_attention_layernorm.weight", "ffn_norm.weight"}};
const Names kNormsAfter = {{"post_attention_layernorm.weight", "post_attention_norm.weight"},
                           {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"}};
const Names kNormsAround =
    kNormsAfter + Names{{"input_layernorm.weight", "attn_norm.weight"}, {"pre_feedforward_layernorm.weight", "ffn_norm.weight"}};
const Names kLatent = {{"self_attn.q_proj.weight", "attn_q.weight"},
                       {"self_attn.q_a_proj.weight", "attn_q_a.weight"},
                       {"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"},
                       {"self_attn.q_b_proj.weight", "attn_q_b.weight"},
                       {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
                       {"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
                       {"self_attn.kv_b_proj.weight", "attn_k_b.weight"},
                       {"self_attn.o_proj.weight", "attn_output.weight"},
                       {"mlp.gate.balancing_biases", "exp_probs_b.bias"},
                       {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
                       {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
                       {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"}};

const std::vector<Architecture>& architectures() {
  static const Names llama = kAttention + kOutputBias + kNormsBefore + kMlp + kMlpBiases;
  static const std::vector<Architecture> all = {
      {.family = "llama", .name = "llama", .tensors = llama, .rotates_neighbours = true, .has_llama3_rope = true, .has_longrope = true},
      {.family = "mistral", .name = "llama", .tensors = llama, .rotates_neighbours = true, .has_llama3_rope = true, .has_longrope = true},
      {.family = "mixtral",
       .name = "llama",
       .tensors = kAttention + kNormsBefore + kExperts,
       .rotates_neighbours = true,
       .has_llama3_rope = true,
       .has_longrope = true},
      {.family = "granite", .name = "granite", .tensors = llama, .rotates_neighbours = true, .has_llama3_rope = true, .has_longrope = true},
      {.family = "smollm3", .name = "smollm3", .tensors = kAttention + kNormsBefore + kMlp, .rotates_neighbours = true},
      {.family = "qwen2", .name = "qwen2", .tensors = kAttention + kNormsBefore + kMlp, .is_as_wide_as_heads = true},
      {.family = "qwen3", .name = "qwen3", .tensors = kAttention + kHeadNorms + kNormsBefore + kMlp},
      {.family = "qwen3_moe", .name = "qwen3moe", .tensors = kAttention + kHeadNorms + kNormsBefore + kExperts},
      {.family = "olmo2",
       .name = "olmo2",
       .tensors = kAttention + kHeadNorms + kNormsAfter + kMlp,
       .needs_head = true,
       .is_as_wide_as_heads = true},
      {.family = "olmoe",
       .name = "olmoe",
       .tensors = kAttention + kHeadNorms + kNormsBefore + kExperts,
       .needs_head = true,
       .is_as_wide_as_heads = true},
      {.family = "gemma2", .name = "gemma2", .tensors = kAttention + kNormsAround + kMlp, .has_windows = true, .adds_one_to_norms = true},
      {.family = "gemma3_text",
       .name = "gemma3",
       .tensors = kAttention + kHeadNorms + kNormsAround + kMlp,
       .has_windows = true,
       .adds_one_to_norms = true},
      {.family = "phi3",
       .name = "phi3",
       .tensors = kAttention + kNormsBefore + kMlp,
       .has_longrope = true,
       .is_as_wide_as_heads = true,
       .fuses = true},
      {.family = "gpt_oss",
       .name = "gpt-oss",
       .tensors = kAttention + kOutputBias + kExperts + kExpertBiases +
                  Names{{"input_layernorm.weight", "attn_norm.weight"},
                        {"post_attention_layernorm.weight", "post_attention_norm.weight"},
                        {"self_attn.sinks", "attn_sinks.weight"}},
       .needs_head = true,
       .has_windows = true},
      {.family = "deepseek_v3", .name = "deepseek2", .tensors = kLatent + kNormsBefore + kMlp + kExperts, .rotates_neighbours = true}};
  return all;
}

std::string why_not(const std::string& family) {
  if (family == "zaya1") return "llama.cpp has neither its convolved attention (CCA) nor its router";
  if (family == "linear_llama" || family == "fla") return "llama.cpp has no such layers of linear attention";
  return "llama.cpp knows one like it, which is not written here";
}

bool any_slides(const ModelConfig& c) {
  for (int64_t layer = 0; layer < c.layers; ++layer)
    if (c.is_sliding(layer)) return true;
  return false;
}

bool is_latent(const ModelConfig& c) { return c.family == "deepseek_v3"; }
bool has_experts(const Architecture& a) { return a.tensors.contains("mlp.experts.down_proj"); }

template <class... Args>
void refuse_if(bool wrong, const ModelConfig& c, fmt::format_string<Args...> why, Args&&... args) {
  if (wrong) throw ModelError("this {} model has no GGUF form: {}", c.family, fmt::format(why, std::forward<Args>(args)...));
}

void check_rope(const ModelConfig& c, const Architecture& a) {
  const std::string& scaling = c.rope_scaling;
  refuse_if((scaling == "llama3" && !a.has_llama3_rope) || (scaling == "longrope" && !a.has_longrope), c,
            "llama.cpp's {} has no model.rope_scaling = {}", a.name, scaling);
  refuse_if(c.rope_fraction != 1 && a.rotates_neighbours, c, "llama.cpp's {} rotates whole heads; model.rope_fraction = {}", a.name,
            c.rope_fraction);
  if (!any_slides(c)) return;
  const bool has_own_base = a.family == "gemma3_text";
  refuse_if(!has_own_base && c.rope_base_sliding != c.rope_base, c,
            "llama.cpp's {} has one RoPE base for all layers; model.rope_base = {}, rope_base_sliding = {}", a.name, c.rope_base,
            c.rope_base_sliding);
  refuse_if(scaling != "none" && c.rope_scaling_sliding == has_own_base, c,
            "llama.cpp's {} {} RoPE of sliding layers; model.rope_scaling_sliding = {}", a.name,
            has_own_base ? "does not stretch" : "also stretches", c.rope_scaling_sliding);
}

void check_experts(const ModelConfig& c) {
  const bool sums_to_one = c.family != "olmoe";
  refuse_if(!is_latent(c) && c.norm_topk_prob != sums_to_one, c, "llama.cpp's weights of a token's experts {} 1; model.norm_topk_prob = {}",
            sums_to_one ? "sum to" : "do not sum to", c.norm_topk_prob);
  refuse_if(!is_latent(c) && (c.router_score != "softmax" || c.router_groups != 1 || c.router_scale != 1 || c.shared_expert_ffn > 0), c,
            "llama.cpp's router is a softmax over all experts without a scale, and no expert is shared");
}

void check_family(const ModelConfig& c, const Architecture& a) {
  const double plain = 1 / std::sqrt(static_cast<double>(c.resolved_head_dim()));
  const bool is_gemma = a.adds_one_to_norms;
  refuse_if(is_gemma && c.softmax_scale > 0 && std::abs(c.softmax_scale - plain) > 1e-6 * plain, c,
            "llama.cpp's {} scales scores by 1 / sqrt(head_dim) = {}; model.softmax_scale = {}", a.name, plain, c.softmax_scale);
  refuse_if(a.family == "gemma2" && (c.score_cap <= 0 || c.logit_cap <= 0), c,
            "llama.cpp's gemma2 caps scores and logits; model.score_cap = {}, logit_cap = {}", c.score_cap, c.logit_cap);
  refuse_if(a.family == "gemma2" && !c.tie_embeddings, c, "llama.cpp's gemma2 ties the head to the embedding");
  if (a.family == "smollm3")
    for (int64_t layer = 0; layer < c.layers; ++layer)
      refuse_if((c.layer_type(layer) == "nope") != ((layer + 1) % 4 == 0), c,
                "llama.cpp's smollm3 has RoPE in all layers but every fourth; layer {} is of type {}", layer, c.layer_type(layer));
  refuse_if(is_latent(c) && c.rope_scaling == "yarn" && (c.softmax_scale <= 0 || std::abs(c.rope_attention_factor - 1) > 1e-6), c,
            "llama.cpp's deepseek2 takes YaRN with mscale = mscale_all_dim alone");
  const bool is_taken_for_lite = c.layers == 26 || c.layers == 27 || (c.layers == 48 && c.vocab_size == 128256);
  refuse_if(is_latent(c) && is_taken_for_lite && c.query_rank > 0, c,
            "llama.cpp's deepseek2 takes a model of {} layers for one without a latent of queries; model.query_rank = {}", c.layers,
            c.query_rank);
  refuse_if(c.family == "gpt_oss" && !c.attention_bias, c, "llama.cpp's gpt-oss has biases of attention; model.attention_bias = false");
}

// What a stretched context multiplies scores by, the root of it, as the logarithm's slope (models/families/deepseek_v3.cpp).
double yarn_slope(const ModelConfig& c) {
  const double sharpness = std::sqrt(c.softmax_scale * std::sqrt(static_cast<double>(c.resolved_head_dim())));
  return (sharpness - 1) / (0.1 * std::log(c.rope_factor));
}

class Fields {
 public:
  explicit Fields(std::string prefix) : prefix_(std::move(prefix)) {}
  void count(const char* key, int64_t value) { fields_.push_back({prefix_ + key, static_cast<uint32_t>(value)}); }
  void number(const char* key, double value) { fields_.push_back({prefix_ + key, static_cast<float>(value)}); }
  void other(const char* key, Value value) { fields_.push_back({prefix_ + key, std::move(value)}); }
  std::vector<Field> take() { return std::move(fields_); }

 private:
  std::string prefix_;
  std::vector<Field> fields_;
};

void add_rope(Fields& fields, const ModelConfig& c, const Architecture& a) {
  const auto rotated = static_cast<int64_t>(static_cast<double>(c.resolved_head_dim()) * c.rope_fraction);
  fields.count("rope.dimension_count", is_latent(c) ? c.rope_head_dim : rotated);
  fields.number("rope.freq_base", c.rope_base);
  if (a.family == "gemma3_text") fields.number("rope.freq_base_swa", c.rope_base_sliding);
  if (c.rope_scaling == "none" || c.rope_scaling == "llama3") return;  // llama3's factors are a tensor
  fields.other("rope.scaling.type", c.rope_scaling);
  if (c.rope_scaling == "longrope") {
    fields.number("rope.scaling.attn_factor", c.rope_attention_factor);
    return fields.count("rope.scaling.original_context_length", c.rope_original_positions);
  }
  fields.number("rope.scaling.factor", c.rope_factor);
  if (c.rope_scaling == "linear") return;
  fields.count("rope.scaling.original_context_length", c.rope_original_positions);
  fields.number("rope.scaling.yarn_beta_fast", c.rope_beta_fast);
  fields.number("rope.scaling.yarn_beta_slow", c.rope_beta_slow);
  // Of DeepSeek's YaRN, llama.cpp leaves cosines and sines as they are; else it multiplies them by 1 + 0.1 ln(factor) and by this.
  const double own = is_latent(c) ? 1 : 1 + 0.1 * std::log(std::max(1.0, c.rope_factor));
  fields.number("rope.scaling.attn_factor", c.rope_attention_factor / own);
  if (is_latent(c)) fields.number("rope.scaling.yarn_log_multiplier", 0.1 * yarn_slope(c));
}

void add_attention(Fields& fields, const ModelConfig& c, const Architecture& a) {
  const int64_t head_dim = c.resolved_head_dim();
  fields.count("attention.head_count", c.heads);
  fields.number("attention.layer_norm_rms_epsilon", c.norm_eps);
  if (is_latent(c)) {
    // Each head reads the latent and the rotating channels as if they were its keys.
    fields.count("attention.head_count_kv", 1);
    fields.count("attention.key_length", c.kv_rank + c.rope_head_dim);
    fields.count("attention.value_length", c.kv_rank);
    fields.count("attention.key_length_mla", head_dim);
    fields.count("attention.value_length_mla", c.resolved_value_head_dim());
    fields.count("attention.kv_lora_rank", c.kv_rank);
    fields.count("attention.q_lora_rank", c.query_rank);
    return;
  }
  fields.count("attention.head_count_kv", c.kv_heads);
  fields.count("attention.key_length", head_dim);
  fields.count("attention.value_length", head_dim);
  if (a.family == "granite" && c.softmax_scale > 0) fields.number("attention.scale", c.softmax_scale);
  if (a.family == "gemma2") fields.number("attn_logit_softcapping", c.score_cap);
  if (a.family == "phi3") fields.count("attention.sliding_window", 0);
  if (!a.has_windows || (a.family == "gemma3_text" && !any_slides(c))) return;
  std::vector<bool> slides;
  for (int64_t layer = 0; layer < c.layers; ++layer) slides.push_back(c.is_sliding(layer));
  fields.count("attention.sliding_window", c.window > 0 ? c.window : c.max_positions);
  fields.other("attention.sliding_window_pattern", slides);
}

void add_experts(Fields& fields, const ModelConfig& c) {
  fields.count("expert_count", c.experts);
  fields.count("expert_used_count", c.top_k);
  fields.count("expert_feed_forward_length", c.expert_ffn);
  if (!is_latent(c)) return;
  constexpr int64_t kSigmoid = 2;
  fields.count("leading_dense_block_count", std::min(c.first_dense_layers, c.layers));
  fields.count("expert_shared_count", c.shared_expert_ffn / c.expert_ffn);
  fields.count("expert_gating_func", kSigmoid);
  fields.number("expert_weights_scale", c.router_scale);
  fields.other("expert_weights_norm", c.norm_topk_prob);
  if (c.router_groups > 1) {
    fields.count("expert_group_count", c.router_groups);
    fields.count("expert_group_used_count", c.router_top_groups);
  }
}

}  // namespace

const Architecture& architecture_of(const ModelConfig& c) {
  std::vector<std::string> known;
  const Architecture* found = nullptr;
  for (const auto& each : architectures()) {
    known.push_back(each.family);
    if (each.family == c.family) found = &each;
  }
  if (!found)
    throw ModelError("the {} family has no GGUF form: {}; these have one: {}", c.family, why_not(c.family), base::join(known, ", "));
  refuse_if(!c.mixers.empty() || !c.feed_forwards.empty(), c, "model.{} puts other parts into it, which llama.cpp has not",
            c.mixers.empty() ? "feed_forwards" : "mixers");
  models::family_named(c.family).to_hugging_face(c);  // refuses what is no setting of the family; llama.cpp has no more
  refuse_if(found->is_as_wide_as_heads && c.heads * c.resolved_head_dim() != c.hidden, c,
            "llama.cpp's {} has heads * head_dim = hidden; they are {} and {}", found->name, c.heads * c.resolved_head_dim(), c.hidden);
  check_rope(c, *found);
  if (has_experts(*found)) check_experts(c);
  check_family(c, *found);
  return *found;
}

int64_t context_length(const ModelConfig& c, const Architecture& a) {
  return any_slides(c) && !a.has_windows ? std::min(c.max_positions, c.window) : c.max_positions;
}

std::vector<Field> shape_fields(const ModelConfig& c, const Architecture& a) {
  Fields fields(a.name + ".");
  fields.count("vocab_size", c.vocab_size);
  fields.count("context_length", context_length(c, a));
  fields.count("embedding_length", c.hidden);
  fields.count("block_count", c.layers);
  fields.count("feed_forward_length", has_experts(a) && c.ffn <= 0 ? c.expert_ffn : c.ffn);
  add_attention(fields, c, a);
  add_rope(fields, c, a);
  if (has_experts(a)) add_experts(fields, c);
  if (c.logit_cap > 0) fields.number("final_logit_softcapping", c.logit_cap);
  if (a.family == "granite") {
    fields.number("embedding_scale", c.embedding_scale > 0 ? c.embedding_scale : 1);
    fields.number("residual_scale", c.residual_scale);
    fields.number("logit_scale", 1 / c.logit_scale);
  }
  auto all = fields.take();
  all.insert(all.begin(), {"general.architecture", a.name});
  return all;
}

}  // namespace ingot::gguf
