// Llama 2 and 3: pre-norm blocks of grouped-query attention and a gated MLP.
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/norm.h"
#include "layers/linear.h"
#include "layers/recompute.h"
#include "layers/softmax_attention.h"
#include "layers/tensor_sequence/folded_layer.h"
#include "models/hugging_face_config.h"
#include "models/model.h"

namespace ingot::models {
namespace {

using layers::Parameter;

struct Block {
  Parameter *attention_norm, *mlp_norm;
  layers::SoftmaxAttention attention;
  Parameter *gate, *up, *down, *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
  Parameter* attention_out_bias = nullptr;
};

class Llama : public Model {
 public:
  Llama(const ModelConfig& config, const Layout& layout) : Model(config, layout) {
    if (config.ffn < 1) throw base::ConfigError("model.ffn = {} must be positive for the llama family", config.ffn);
    if (layout.experts.is_on())
      throw base::ConfigError("parallel.expert = {}, expert_tensor = {}: the llama family has no experts; both must be 1",
                              layout.experts.size, layout.experts.slices);
    require_heads();
    require_shares("ffn", config.ffn);
    declare_embedding();
    for (int64_t layer = 0; layer < config.layers; ++layer) blocks_.push_back(layout.stage.holds(layer) ? declare_block(layer) : Block{});
    parameters_.begin_layer(config.layers);
    if (layout.stage.has_head()) norm_ = &vector("model.norm.weight", config.hidden, 1);
    declare_head();
  }

  void set_rope_base(double base) override {
    config_.rope_base = base;
    for (int64_t layer = 0; layer < config_.layers; ++layer)
      if (!config_.is_sliding(layer)) blocks_[static_cast<size_t>(layer)].attention.rotary.base = base;
  }

  void describe_block(int64_t layer, layers::Workload& work) const override {
    const auto& c = config_;
    const int64_t ranks = layout_.tensor.size, between = rows_between(work), heads = c.heads / ranks, kv_heads = c.kv_heads / ranks;
    const int64_t d = c.resolved_head_dim(), q = heads * d, kv = kv_heads * d, ffn = c.ffn / ranks;
    const auto residual = work.enter(work.wide(c.hidden, between)), normed = work.narrow(c.hidden, between), qkv = work.narrow(q + 2 * kv);
    work.kernel("rms_norm", {residual}, {normed}, {residual, work.wide(1, between)});
    const auto packed = describe_linear(work, describe_enter(work, normed, c.hidden), {q, kv, kv}, c.attention_bias);
    work.kernel("split_and_rotate", {packed}, {qkv}, {});
    const auto mixed = work.narrow(q);
    describe_attention(work, qkv, mixed, heads, kv_heads, layer);
    const auto branch = describe_leave(work, describe_linear(work, mixed, {c.hidden}, c.attention_bias));
    work.begin_feed_forward();
    const auto joined = work.wide(c.hidden, between), mlp_in = work.narrow(c.hidden, between), activated = work.narrow(ffn);
    work.kernel("join_norm", {residual, branch}, {joined, mlp_in}, {residual, branch, joined, work.wide(1, between)});
    const auto gate_up = describe_linear(work, describe_enter(work, mlp_in, c.hidden), {ffn, ffn}, c.mlp_bias);
    work.kernel("swiglu", {gate_up}, {activated}, {gate_up});
    const auto out = describe_leave(work, describe_linear(work, activated, {c.hidden}, c.mlp_bias));
    work.kernel("join", {joined, out}, {work.wide(c.hidden, between)}, {joined, out});
  }

  int64_t active_elements() const override {
    return parameters_.trained_elements() - embedding_->elements() - (head_ == embedding_ ? 0 : head_->elements());
  }

 protected:
  Stream embed(const at::Tensor& ids) override {
    return {embedded(ids), {}};
  }

  Stream block(int64_t layer, const Stream& stream, ForwardContext& context) override {
    Block& b = blocks_[static_cast<size_t>(layer)];
    auto* cache = context.caches ? &(*context.caches)[static_cast<size_t>(layer)].key_values : nullptr;
    const auto normed = kernels::rms_norm(stream.residual, b.attention_norm->value, config_.norm_eps, dtype());
    const auto& folded = layout_.tensor_sequence;
    const auto attended = folded.is_on() ? b.attention.folded(normed, *context.sequences, folded)
                                         : leave(b.attention(enter(normed, context), *context.sequences, cache));
    const auto mixed = with_bias(attended, b.attention_out_bias);
    auto mlp_half = [this, &b, sequences = context.sequences](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
      const auto [joined, mlp_in] = kernels::join_residual_and_norm(in[0], in[1], {}, b.mlp_norm->value, config_.norm_eps, dtype());
      const auto out = with_bias(mlp(b, mlp_in, *sequences), b.down_bias);
      return {kernels::join_residual(joined, out, {})};
    };
    const bool again = context.recompute == Recompute::selective && at::GradMode::is_enabled();
    return {(again ? layers::recompute(mlp_half, {stream.residual, mixed}) : mlp_half({stream.residual, mixed}))[0], {}};
  }

  at::Tensor finish(const Stream& stream) override { return kernels::rms_norm(stream.residual, norm_->value, config_.norm_eps, dtype()); }

 private:
  at::Tensor mlp(const Block& b, const at::Tensor& x, const layers::Sequences& sequences) const {
    const auto activated = [](const at::Tensor& in, const layers::PartOfWeights& weights) {  // gate, up, and their biases
      const auto biases = std::vector<Parameter*>(weights.begin() + 2, weights.end());
      return kernels::swiglu(layers::linear(in, {weights[0], weights[1]}, biases));
    };
    layers::PartOfWeights weights = {b.gate, b.up};
    if (b.gate_bias) weights.insert(weights.end(), {b.gate_bias, b.up_bias});
    if (layout_.tensor_sequence.is_on()) return layers::folded_layer(x, weights, *b.down, activated, layout_.tensor_sequence);
    return leave(layers::linear(activated(layout_.tensor.enter(x, sequences.batch(), sequences.seq()), weights), {b.down}));
  }

  static layers::ActivationId describe_linear(layers::Workload& work, layers::ActivationId from, const std::vector<int64_t>& outs,
                                              bool biased) {
    const int64_t width = std::accumulate(outs.begin(), outs.end(), int64_t{0});
    const auto product = work.narrow(width);
    work.linear(from, product, outs);
    if (!biased) return product;
    const auto out = work.narrow(width);
    work.kernel("add", {product}, {out}, {});
    return out;
  }

  // Biases of outputs are added once, to the whole sum.
  static at::Tensor with_bias(const at::Tensor& x, const Parameter* bias) { return bias ? (x + bias->value).to(x.scalar_type()) : x; }

  Block declare_block(int64_t layer) {
    const auto& c = config_;
    const int64_t d = c.resolved_head_dim(), q = c.heads * d, kv = c.kv_heads * d, ranks = layout_.tensor.size;
    parameters_.begin_layer(layer);
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    Block b{};
    b.attention_norm = &vector(prefix + "input_layernorm.weight", c.hidden, 1);
    b.attention = {.heads = c.heads / ranks,
                   .kv_heads = c.kv_heads / ranks,
                   .head_dim = d,
                   .window = c.window_of(layer),
                   .rotary = rotary_settings(c, layer),
                   .q = &matrix(prefix + "self_attn.q_proj.weight", {q, c.hidden}, cut_rows(q, c.hidden)),
                   .k = &matrix(prefix + "self_attn.k_proj.weight", {kv, c.hidden}, cut_rows(kv, c.hidden)),
                   .v = &matrix(prefix + "self_attn.v_proj.weight", {kv, c.hidden}, cut_rows(kv, c.hidden)),
                   .o = &matrix(prefix + "self_attn.o_proj.weight", {c.hidden, q}, cut_columns(c.hidden, q))};
    if (c.attention_bias) {
      b.attention.q_bias = &vector(prefix + "self_attn.q_proj.bias", q, 0, cut_vector(q));
      b.attention.k_bias = &vector(prefix + "self_attn.k_proj.bias", kv, 0, cut_vector(kv));
      b.attention.v_bias = &vector(prefix + "self_attn.v_proj.bias", kv, 0, cut_vector(kv));
      b.attention_out_bias = &vector(prefix + "self_attn.o_proj.bias", c.hidden, 0);
    }
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

  std::vector<Block> blocks_;
  Parameter* norm_ = nullptr;
};

ModelConfig from_hugging_face(const nlohmann::json& json) {
  const HuggingFaceFields fields(json);
  ModelConfig c = fields.common();
  c.family = "llama";
  c.ffn = fields.integer("intermediate_size");
  c.attention_bias = fields.boolean("attention_bias", false);
  c.mlp_bias = fields.boolean("mlp_bias", false);
  fields.refuse_unless("hidden_act", "silu");
  fields.read_rope(c, fields.rope());
  return c;
}

nlohmann::json to_hugging_face(const ModelConfig& c) {
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    if (c.is_sliding(layer))
      throw base::ConfigError("layer {} has a sliding window, which Hugging Face's llama does not know: this model cannot be exported",
                              layer);
  }
  auto json = common_hugging_face_config(c);
  json["model_type"] = "llama";
  json["architectures"] = {"LlamaForCausalLM"};
  json["intermediate_size"] = c.ffn;
  json["attention_bias"] = c.attention_bias;
  json["mlp_bias"] = c.mlp_bias;
  json["hidden_act"] = "silu";
  json["rope_parameters"] = hugging_face_rope(c, c.rope_base);
  return json;
}

}  // namespace

Family llama_family() {
  return {"llama", "llama",
          [](const ModelConfig& c, const Layout& layout) -> std::unique_ptr<Model> { return std::make_unique<Llama>(c, layout); },
          from_hugging_face, to_hugging_face};
}

}  // namespace ingot::models
