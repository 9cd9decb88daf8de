#include "models/llama_like.h"

#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "layers/linear.h"
#include "layers/recompute.h"
#include "layers/tensor_sequence/describe_folded.h"
#include "layers/tensor_sequence/folded_layer.h"

namespace ingot::models {

using layers::Parameter;

namespace {

// Biases of outputs are added once, to the whole sum.
at::Tensor with_bias(const at::Tensor& x, const Parameter* bias) { return bias ? (x + bias->value).to(x.scalar_type()) : x; }

}  // namespace

void LlamaLike::declare() {
  if (config_.ffn < 1) throw base::ConfigError("model.ffn = {} must be positive for the {} family", config_.ffn, config_.family);
  if (layout_.experts.is_on())
    throw base::ConfigError("parallel.expert = {}, expert_tensor = {}: the {} family has no experts; both must be 1", layout_.experts.size,
                            layout_.experts.slices, config_.family);
  require_heads();
  require_shares("ffn", config_.ffn);
  declare_embedding();
  for (int64_t layer = 0; layer < config_.layers; ++layer) blocks_.push_back(layout_.stage.holds(layer) ? declare_block(layer) : Block{});
  parameters_.begin_layer(config_.layers);
  if (layout_.stage.has_head()) norm_ = &vector("model.norm.weight", config_.hidden, 1);
  declare_head();
}

LlamaLike::Block LlamaLike::declare_block(int64_t layer) {
  const auto& c = config_;
  parameters_.begin_layer(layer);
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  Block b{};
  b.attention_norm = &vector(prefix + "input_layernorm.weight", c.hidden, 1);
  declare_mixing(layer, prefix);
  b.mlp_norm = &vector(prefix + "post_attention_layernorm.weight", c.hidden, 1);
  b.gate = &matrix(prefix + "mlp.gate_proj.weight", {c.ffn, c.hidden}, cut_rows(c.ffn, c.hidden));
  b.up = &matrix(prefix + "mlp.up_proj.weight", {c.ffn, c.hidden}, cut_rows(c.ffn, c.hidden));
  b.down = &matrix(prefix + "mlp.down_proj.weight", {c.hidden, c.ffn}, cut_columns(c.hidden, c.ffn));
  if (c.mlp_bias) {
    b.gate_bias = &vector(prefix + "mlp.gate_proj.bias", c.ffn, 0, cut_vector(c.ffn));
    b.up_bias = &vector(prefix + "mlp.up_proj.bias", c.ffn, 0, cut_vector(c.ffn));
    b.down_bias = &vector(prefix + "mlp.down_proj.bias", c.hidden, 0);
  }
  return b;
}

void LlamaLike::describe_block(int64_t layer, layers::Workload& work) const {
  const auto& c = config_;
  const int64_t between = rows_between(work);
  const auto residual = work.enter(work.wide(c.hidden, between)), normed = work.narrow(c.hidden, between);
  work.kernel("rms_norm", {residual}, {normed}, {residual, work.wide(1, between)});
  const auto branch = describe_mixing(layer, work, normed);
  work.begin_feed_forward();
  const auto joined = work.wide(c.hidden, between), mlp_in = work.narrow(c.hidden, between);
  work.kernel("join_norm", {residual, branch}, {joined, mlp_in}, {residual, branch, joined, work.wide(1, between)});
  const auto out = describe_mlp(work, mlp_in);
  work.kernel("join", {joined, out}, {work.wide(c.hidden, between)}, {joined, out});
}

layers::ActivationId LlamaLike::describe_mlp(layers::Workload& work, layers::ActivationId x) const {
  const auto& c = config_;
  if (const auto& folded = layout_.tensor_sequence; folded.is_on()) {
    const auto out = work.narrow(c.hidden);
    layers::describe_folded_mlp(work, x, out, c.ffn, c.mlp_bias, folded);
    return c.mlp_bias ? describe_bias(work, out) : out;
  }
  const int64_t ffn = c.ffn / layout_.tensor.size;
  const auto activated = work.narrow(ffn);
  const auto gate_up = describe_linear(work, describe_enter(work, x, c.hidden), {ffn, ffn}, c.mlp_bias);
  work.kernel("swiglu", {gate_up}, {activated}, {gate_up});
  return describe_leave(work, describe_linear(work, activated, {c.hidden}, c.mlp_bias));
}

int64_t LlamaLike::active_elements() const {
  return parameters_.trained_elements() - embedding_->elements() - (head_ == embedding_ ? 0 : head_->elements());
}

Stream LlamaLike::embed(const at::Tensor& ids, const ForwardContext& context) { return {embedded(ids, context), {}}; }

Stream LlamaLike::block(int64_t layer, const Stream& stream, ForwardContext& context) {
  Block& b = blocks_[static_cast<size_t>(layer)];
  const auto normed = kernels::rms_norm(stream.residual, b.attention_norm->value, config_.norm_eps, dtype());
  const auto mixed = mix(layer, normed, context);
  auto mlp_half = [this, &b, sequences = context.sequences](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const auto [joined, mlp_in] = kernels::join_residual_and_norm(in[0], in[1], {}, b.mlp_norm->value, config_.norm_eps, dtype());
    const auto out = with_bias(mlp(b, mlp_in, *sequences), b.down_bias);
    return {kernels::join_residual(joined, out, {})};
  };
  const bool again = context.recompute == Recompute::selective && at::GradMode::is_enabled();
  return {(again ? layers::recompute(mlp_half, {stream.residual, mixed}) : mlp_half({stream.residual, mixed}))[0], {}};
}

at::Tensor LlamaLike::mlp(const Block& b, const at::Tensor& x, const layers::Sequences& sequences) const {
  const auto activated = [](const at::Tensor& in, const layers::PartOfWeights& weights) {  // gate, up, and their biases
    const auto biases = std::vector<Parameter*>(weights.begin() + 2, weights.end());
    return kernels::swiglu(layers::linear(in, {weights[0], weights[1]}, biases));
  };
  layers::PartOfWeights weights = {b.gate, b.up};
  if (b.gate_bias) weights.insert(weights.end(), {b.gate_bias, b.up_bias});
  if (folds(sequences)) return layers::folded_layer(x, weights, *b.down, activated, layout_.tensor_sequence);
  return leave(layers::linear(activated(layout_.tensor.enter(x, sequences.batch(), sequences.seq()), weights), {b.down}));
}

at::Tensor LlamaLike::finish(const Stream& stream) { return kernels::rms_norm(stream.residual, norm_->value, config_.norm_eps, dtype()); }

LlamaLike::Softmax LlamaLike::declare_softmax(int64_t layer, const std::string& prefix) {
  const auto& c = config_;
  const int64_t d = c.resolved_head_dim(), q = c.heads * d, kv = c.kv_heads * d, ranks = layout_.tensor.size;
  Softmax s{{.heads = c.heads / ranks,
             .kv_heads = c.kv_heads / ranks,
             .head_dim = d,
             .window = c.window_of(layer),
             .rotary = rotary_settings(c, layer),
             .q = &matrix(prefix + "self_attn.q_proj.weight", {q, c.hidden}, cut_rows(q, c.hidden)),
             .k = &matrix(prefix + "self_attn.k_proj.weight", {kv, c.hidden}, cut_rows(kv, c.hidden)),
             .v = &matrix(prefix + "self_attn.v_proj.weight", {kv, c.hidden}, cut_rows(kv, c.hidden)),
             .o = &matrix(prefix + "self_attn.o_proj.weight", {c.hidden, q}, cut_columns(c.hidden, q))}};
  if (c.attention_bias) {
    s.attention.q_bias = &vector(prefix + "self_attn.q_proj.bias", q, 0, cut_vector(q));
    s.attention.k_bias = &vector(prefix + "self_attn.k_proj.bias", kv, 0, cut_vector(kv));
    s.attention.v_bias = &vector(prefix + "self_attn.v_proj.bias", kv, 0, cut_vector(kv));
    s.out_bias = &vector(prefix + "self_attn.o_proj.bias", c.hidden, 0);
  }
  return s;
}

at::Tensor LlamaLike::mix_by(const Softmax& softmax, int64_t layer, const at::Tensor& normed, ForwardContext& context) {
  auto* cache = context.caches ? &(*context.caches)[static_cast<size_t>(layer)].key_values : nullptr;
  auto& sequences = *context.sequences;
  const auto& axis = layout_.tensor_sequence;
  if (folds(sequences)) return with_bias(softmax.attention.folded(normed, sequences, axis, cache), softmax.out_bias);
  return with_bias(leave(axis.is_on() ? softmax.attention.decoded(normed, sequences, axis, *cache)
                                      : softmax.attention(enter(normed, context), sequences, cache)),
                   softmax.out_bias);
}

layers::ActivationId LlamaLike::describe_softmax(int64_t layer, layers::Workload& work, layers::ActivationId normed) const {
  const auto& c = config_;
  if (layout_.tensor_sequence.is_on()) return describe_folded_softmax(layer, work, normed);
  const int64_t ranks = layout_.tensor.size, heads = c.heads / ranks, kv_heads = c.kv_heads / ranks;
  const int64_t d = c.resolved_head_dim(), q = heads * d, kv = kv_heads * d;
  const auto qkv = work.narrow(q + 2 * kv);
  const auto packed = describe_linear(work, describe_enter(work, normed, c.hidden), {q, kv, kv}, c.attention_bias);
  work.kernel("split_and_rotate", {packed}, {qkv}, {});
  const auto mixed = work.narrow(q);
  describe_attention(work, qkv, mixed, heads, kv_heads, layer);
  return describe_leave(work, describe_linear(work, mixed, {c.hidden}, c.attention_bias));
}

layers::ActivationId LlamaLike::describe_folded_softmax(int64_t layer, layers::Workload& work, layers::ActivationId normed) const {
  const auto& c = config_;
  const auto& folded = layout_.tensor_sequence;
  const int64_t ranks = folded.size, d = c.resolved_head_dim(), q = c.heads * d, kv = c.kv_heads * d;
  const int64_t visits = layers::folded_visits(c.kv_heads, folded), width = (q + 2 * kv) / visits;
  const int64_t matrices = 2 * (q + kv) * c.hidden / ranks, biases = c.attention_bias ? (q + 2 * kv) / ranks : 0;
  const int64_t packed_bytes = work.tokens() * width * work.element_bytes();
  const int64_t biased_bytes = c.attention_bias ? work.tokens() * width * work.wide_bytes() : 0;
  const auto out = work.narrow(c.hidden);
  layers::describe_folded_attention(
      work, normed, out, {.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = d, .window = c.window_of(layer)},
      {matrices + biases, matrices * work.element_bytes() + biases * work.wide_bytes()},
      {.forward_bytes = packed_bytes + biased_bytes, .backward_bytes = packed_bytes + biased_bytes}, layout_.sequence, folded);
  for (const int64_t rows : {q, kv, kv}) work.inner_linear(c.hidden, rows / ranks, ranks).repeated_in_backward = true;
  work.inner_kernel("split_and_rotate", work.tokens(), width, visits).repeated_in_backward = true;
  return c.attention_bias ? describe_bias(work, out) : out;
}

layers::ActivationId LlamaLike::describe_linear(layers::Workload& work, layers::ActivationId from, const std::vector<int64_t>& outs,
                                                bool biased) {
  const int64_t width = std::accumulate(outs.begin(), outs.end(), int64_t{0});
  const auto product = work.narrow(width);
  work.linear(from, product, outs);
  return biased ? describe_bias(work, product) : product;
}

layers::ActivationId LlamaLike::describe_bias(layers::Workload& work, layers::ActivationId product) {
  const auto out = work.narrow(work.activation(product).width);
  work.kernel("add", {product}, {out}, {});
  return out;
}

ModelConfig llama_like_from_hugging_face(const HuggingFaceFields& fields) {
  ModelConfig c = fields.common();
  c.ffn = fields.integer("intermediate_size");
  c.attention_bias = fields.boolean("attention_bias", false);
  c.mlp_bias = fields.boolean("mlp_bias", false);
  fields.refuse_unless("hidden_act", "silu");
  fields.read_rope(c, fields.rope());
  return c;
}

nlohmann::json llama_like_to_hugging_face(const ModelConfig& c) {
  for (int64_t layer = 0; layer < c.layers; ++layer)
    if (c.is_sliding(layer))
      throw base::ConfigError(
          "layer {} has a sliding window, which the {} family has not in Hugging Face's form: this model cannot be exported", layer,
          c.family);
  auto json = common_hugging_face_config(c);
  json["intermediate_size"] = c.ffn;
  json["attention_bias"] = c.attention_bias;
  json["mlp_bias"] = c.mlp_bias;
  json["hidden_act"] = "silu";
  json["rope_parameters"] = hugging_face_rope(c, c.rope_base);
  return json;
}

}  // namespace ingot::models
