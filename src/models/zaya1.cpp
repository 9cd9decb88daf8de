// ZAYA1 (facts zaya1 §4): CCA attention and a top-1 mixture of experts in every block, joined to the residual stream by
// learned scales, with a router whose state runs along the depth.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "kernels/norm.h"
#include "layers/cca_attention.h"
#include "layers/experts.h"
#include "layers/recompute.h"
#include "layers/router.h"
#include "layers/tensor_sequence/describe_folded.h"
#include "models/hugging_face_config.h"
#include "models/model.h"

namespace ingot::models {
namespace {

using layers::Parameter;

struct ScaleParameters {
  Parameter *residual_scale, *residual_bias, *branch_scale, *branch_bias;
  kernels::ResidualScale values() const { return {residual_scale->value, residual_bias->value, branch_scale->value, branch_bias->value}; }
};

struct Block {
  Parameter *attention_norm, *mixture_norm;
  layers::CcaAttention attention;
  ScaleParameters after_attention, after_mixture;
  layers::RouterParameters router;
  Parameter *gate_up, *down;
};

class Zaya1 : public Model {
 public:
  Zaya1(const ModelConfig& config, const Layout& layout) : Model(config, layout) {
    check(config, layout.only_described);
    require_heads();
    if (layout.tensor_sequence.is_on()) require_shares("kv_heads", config.kv_heads);
    if (config.experts % layout.experts.size != 0)
      throw base::ConfigError("parallel.expert = {} does not divide model.experts = {}", layout.experts.size, config.experts);
    if (config.expert_ffn % layout.experts.slices != 0)
      throw base::ConfigError("parallel.expert_tensor = {} does not divide model.expert_ffn = {}", layout.experts.slices,
                              config.expert_ffn);
    if (layout.tensor.is_on() && !layout.tensor.shards_tokens)
      throw base::ConfigError("parallel.sequence_parallel = false: a mixture of experts needs each token on one rank only; set it to true");
    declare_embedding();
    if (layout.stage.has_embedding()) {
      input_scale_ = &vector("model.input_hidden_states_scale", config.hidden, 1);
      input_bias_ = &vector("model.input_hidden_states_bias", config.hidden, 0);
    }
    for (int64_t layer = 0; layer < config.layers; ++layer) blocks_.push_back(layout.stage.holds(layer) ? declare_block(layer) : Block{});
    parameters_.begin_layer(config.layers);
    if (layout.stage.has_head()) norm_ = &vector("model.norm.weight", config.hidden, 1);
    declare_head();
  }

  void initialise(uint64_t seed) override {
    Model::initialise(seed);
    if (!config_.skip_class) return;
    for (auto& block : blocks_)
      if (block.router.balancing_bias) block.router.balancing_bias->value[config_.experts] = config_.skip_bias;
  }

  Parameter* balancing_bias(int64_t layer) override { return blocks_[static_cast<size_t>(layer)].router.balancing_bias; }

  int64_t router_state_width() const override { return config_.router_hidden; }

  void set_rope_base(double base) override {
    config_.rope_base = base;
    for (int64_t layer = 0; layer < config_.layers; ++layer)
      if (!config_.is_sliding(layer)) blocks_[static_cast<size_t>(layer)].attention.rotary.base = base;
  }

  void describe_embedding(layers::Workload& work) const override {
    const int64_t between = rows_between(work);
    const auto rows = describe_lookup(work), biased = work.wide(config_.hidden, between);
    work.kernel("add", {rows}, {biased}, {});
    work.kernel("scale", {biased}, {work.wide(config_.hidden, between)}, {biased});
  }

  void describe_block(int64_t layer, layers::Workload& work) const override {
    const auto& c = config_;
    const int64_t between = rows_between(work);
    const auto residual = work.enter(work.wide(c.hidden, between)), normed = work.narrow(c.hidden, between);
    work.kernel("rms_norm", {residual}, {normed}, {residual, work.wide(1, between)});
    const auto branch = describe_mixing(layer, work, normed);
    work.begin_feed_forward();
    const auto joined = work.wide(c.hidden, between), x = work.narrow(c.hidden, between);
    work.kernel("scaled_join_norm", {residual, branch}, {joined, x}, {residual, branch, joined, work.wide(1, between)});
    describe_router(layer, work, x);
    const auto out = describe_experts(work, x);
    work.kernel("scaled_join", {joined, out}, {work.wide(c.hidden, between)}, {joined, out});
  }

  int64_t active_elements() const override {
    const auto& c = config_;
    const int64_t idle = c.layers * (c.experts - c.top_k) * 3 * c.expert_ffn * c.hidden;
    return parameters_.trained_elements() - embedding_->elements() - (head_ == embedding_ ? 0 : head_->elements()) - idle;
  }

 protected:
  Stream embed(const at::Tensor& ids, const ForwardContext& context) override {
    return {(embedded(ids, context) + input_bias_->value) * input_scale_->value, {}};
  }

  Stream block(int64_t layer, const Stream& stream, ForwardContext& context) override {
    Block& b = blocks_[static_cast<size_t>(layer)];
    auto* cache = context.caches ? &(*context.caches)[static_cast<size_t>(layer)] : nullptr;
    const auto normed = kernels::rms_norm(stream.residual, b.attention_norm->value, config_.norm_eps, dtype());
    const auto& axis = layout_.tensor_sequence;
    const auto mixed = folds(*context.sequences) ? b.attention.folded(normed, *context.sequences, axis, cache)
                       : axis.is_on()            ? leave(b.attention.decoded(normed, *context.sequences, axis, *cache))
                                                 : leave(b.attention(enter(normed, context), *context.sequences, cache));
    auto mixture_half = [this, &b, layer, observer = context.observer](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
      const auto [joined, mixture_in] =
          kernels::join_residual_and_norm(in[0], in[1], b.after_attention.values(), b.mixture_norm->value, config_.norm_eps, dtype());
      const auto x = mixture_in.flatten(0, 1);
      const auto routing = layers::route(x, in[2], b.router, config_.norm_eps, choose_for(layer));
      if (observer && !layers::is_recomputing()) observer->on_routing(layer, routing);
      const auto skip = config_.skip_output == "identity" ? layers::SkipOutput::identity : layers::SkipOutput::zero;
      const auto out = layers::experts(x, routing.choice, routing.weight, *b.gate_up, *b.down, config_.top_k, skip,
                                       {layout_.experts.slices, layout_.experts.group});
      return {kernels::join_residual(joined, out.view_as(mixture_in), b.after_mixture.values()), routing.state};
    };
    const bool again = context.recompute == Recompute::selective && at::GradMode::is_enabled();
    const std::vector<at::Tensor> in = {stream.residual, mixed, stream.router_state};
    const auto out = again ? layers::recompute(mixture_half, in) : mixture_half(in);
    return {out[0], out[1]};
  }

  at::Tensor finish(const Stream& stream) override { return kernels::rms_norm(stream.residual, norm_->value, config_.norm_eps, dtype()); }

 private:
  layers::ChooseClasses choose_for(int64_t layer) const {
    if (config_.force_balance)
      return [this](const at::Tensor& choice) { return at::arange(choice.size(0), choice.options()).remainder_(config_.experts); };
    if (!routing_replay_) return {};
    return [this, layer](const at::Tensor& choice) { return routing_replay_(layer, choice); };
  }

  static void check(const ModelConfig& c, bool only_described) {
    if (c.top_k > c.experts) throw base::ConfigError("model.top_k = {} is more than model.experts = {}", c.top_k, c.experts);
    if (c.top_k != 1 && !only_described)
      throw base::ConfigError("model.top_k = {}: the zaya1 family routes each token to one expert", c.top_k);
    if (c.attention_bias || c.mlp_bias)
      throw base::ConfigError("model.{} = true: the zaya1 family has no such biases", c.attention_bias ? "attention_bias" : "mlp_bias");
    if (c.kv_heads * c.resolved_head_dim() % 2 != 0)
      throw base::ConfigError("model.kv_heads * head_dim = {} must be even: half of the value channels come from the previous token",
                              c.kv_heads * c.resolved_head_dim());
  }

  layers::ActivationId describe_mixing(int64_t layer, layers::Workload& work, layers::ActivationId normed) const {
    const auto& c = config_;
    if (layout_.tensor_sequence.is_on()) return describe_folded_mixing(layer, work, normed);
    const int64_t ranks = layout_.tensor.size, heads = c.heads / ranks, kv_heads = c.kv_heads / ranks;
    const int64_t d = c.resolved_head_dim(), q = heads * d, kv = kv_heads * d, latent = q + kv;
    const auto packed = work.narrow(q + 2 * kv), qkv = work.narrow(q + 2 * kv);
    const int64_t current = layout_.tensor.is_on() ? value_rows(c.kv_heads * d).current.size() : kv / 2;
    work.linear(describe_enter(work, normed, c.hidden), packed, {q, kv, current, kv - current});
    auto& mix = work.kernel("cca_mix", {packed}, {qkv}, {packed, work.wide(latent)}, work.tokens() * (heads + kv_heads), d);
    const int64_t taps_bytes = work.tokens() * latent * 2 * work.wide_bytes();  // the first convolution's output, once for each tap
    mix.flops = mix_flops(work.tokens() * latent);
    mix.forward_scratch_bytes = taps_bytes;
    mix.backward_scratch_bytes = 2 * taps_bytes + taps_bytes / 2;
    const auto mixed = work.narrow(q), product = work.narrow(c.hidden);
    describe_attention(work, qkv, mixed, heads, kv_heads, layer);
    work.linear(mixed, product);
    return describe_leave(work, product);
  }

  layers::ActivationId describe_folded_mixing(int64_t layer, layers::Workload& work, layers::ActivationId normed) const {
    const auto& c = config_;
    const auto& folded = layout_.tensor_sequence;
    const int64_t ranks = folded.size, d = c.resolved_head_dim(), q = c.heads * d, kv = c.kv_heads * d, e = work.element_bytes(),
                  w = work.wide_bytes();
    const int64_t matrices = 2 * (q + kv) * c.hidden / ranks, mixing = ((q + kv) * (2 * d + 4) + c.kv_heads) / ranks;
    // Of one visit; tokens with the halo in front of each chunk.
    const int64_t halo = layers::kHalo * work.batch() * layout_.sequence.chunks(), rows = work.tokens() + halo;
    const int64_t packed_bytes = rows * (q + 2 * kv) / ranks * e, latent_bytes = rows * (q + kv) / ranks * w, taps_bytes = 2 * latent_bytes;
    const auto out = work.narrow(c.hidden);
    layers::describe_folded_attention(work, normed, out,
                                      {.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = d, .window = c.window_of(layer)},
                                      {matrices + mixing, matrices * e + mixing * w},
                                      {.halo_rows = halo,
                                       .forward_bytes = 2 * packed_bytes + latent_bytes + taps_bytes,
                                       .kept_bytes = packed_bytes + latent_bytes,
                                       .backward_bytes = 2 * packed_bytes + latent_bytes + 2 * taps_bytes},
                                      layout_.sequence, folded);
    for (const int64_t width : {q, kv, kv}) work.inner_linear(c.hidden, width / ranks, ranks).repeated_in_backward = true;
    auto& mix = work.inner_kernel("cca_mix", work.tokens() * (c.heads + c.kv_heads) / ranks, d, ranks);
    mix.flops = mix_flops(work.tokens() * (q + kv));
    mix.repeated_in_backward = true;
    return out;
  }

  // Both convolutions have two taps.
  double mix_flops(int64_t latents) const {
    return static_cast<double>(latents) * 2 * 2 * static_cast<double>(config_.resolved_head_dim() + 1);
  }

  // Always in fp32; its state goes on to the next layer's.
  void describe_router(int64_t layer, layers::Workload& work, layers::ActivationId x) const {
    const int64_t r = config_.router_hidden, classes = config_.experts + (config_.skip_class ? 1 : 0), rows = rows_between(work);
    auto x_wide = x;
    if (work.element_bytes() < work.wide_bytes()) {
      x_wide = work.wide(config_.hidden, rows);
      work.kernel("copy", {x}, {x_wide}, {});
    }
    const auto projected = work.wide(r, rows), state = work.wide(r, rows);
    work.linear(x_wide, projected);
    std::vector<layers::ActivationId> read = {projected};
    if (layer > 0) read.push_back(work.enter(work.wide(r, rows)));
    // Saved: the state, the norm's output, and twice a biased product and its GELU; probabilities; one number per row; the choice.
    auto& router = work.kernel("router", read, {state, work.wide(1, rows)},
                               {state, work.wide(5 * r, rows), work.wide(classes + 1, rows), work.indices(rows)});
    router.flops = 2 * static_cast<double>(rows) * static_cast<double>(2 * r * r + r * classes);
  }

  // Tokens of the skip class are counted as if they used an expert.
  layers::ActivationId describe_experts(layers::Workload& work, layers::ActivationId x) const {
    const auto& c = config_;
    const int64_t slots = rows_between(work) * c.top_k;
    // As many rows come from the ranks with the other experts as go there.
    const int64_t own = c.experts / layout_.experts.size;
    // The busiest rank is described: the others wait for it.
    const auto ranks = static_cast<double>(layout_.experts.size);
    const auto arriving = static_cast<int64_t>(std::ceil(static_cast<double>(slots) * std::clamp(work.expert_load(), 1.0, ranks)));
    const auto rows = work.narrow(c.hidden, arriving), gate_up = work.narrow(2 * c.expert_ffn, arriving),
               activated = work.narrow(c.expert_ffn, arriving);
    const auto routed = work.narrow(c.hidden, arriving), out = work.narrow(c.hidden, rows_between(work));
    work.kernel("expert_dispatch", {x}, {rows}, {x, work.wide(1, arriving), work.indices(slots)});
    work.linear(rows, gate_up, {}, own).saved = {gate_up};
    work.kernel("swiglu", {gate_up}, {activated}, {}).repeated_in_backward = true;
    work.linear(activated, routed, {}, own).saved = {};
    work.kernel("expert_dispatch", {routed}, {out}, {}).rows = 0;  // measured as one with the way there
    return out;
  }

  // Scaled by fan-in, not by init_std: with the small deviation all tokens would choose alike until the router has grown.
  Parameter& router_matrix(const std::string& name, tensor::Shape shape) {
    const double deviation = 1 / std::sqrt(static_cast<double>(shape.back()));
    auto& parameter = matrix(name, std::move(shape));
    parameter.initial = tensor::Initial::normal(deviation);
    parameter.keeps_fp32 = true;
    return parameter;
  }
  Parameter& convolution(const std::string& name, tensor::Shape shape, tensor::Part part) {
    auto& parameter = matrix(name, std::move(shape), std::move(part));
    parameter.keeps_fp32 = true;
    parameter.kind = Parameter::Kind::convolution;
    return parameter;
  }
  ScaleParameters scales(const std::string& prefix) {
    return {&vector(prefix + "residual_scale", config_.hidden, 1), &vector(prefix + "residual_bias", config_.hidden, 0),
            &vector(prefix + "hidden_states_scale", config_.hidden, 1), &vector(prefix + "hidden_states_bias", config_.hidden, 0)};
  }

  // Rows of the two value projections that make up this rank's value heads: the first half of all value channels comes from the
  // token itself, the second from the one before.
  struct ValueRows {
    tensor::Range current, delayed;
  };
  ValueRows value_rows(int64_t values) const {
    const auto own = layout_.weight_share(values);
    const auto within = [&](int64_t from) {
      return tensor::Range{std::clamp<int64_t>(own.begin - from, 0, values / 2), std::clamp<int64_t>(own.end - from, 0, values / 2)};
    };
    return {within(0), within(values / 2)};
  }
  tensor::Part rows_part(const tensor::Range& rows, int64_t cols) const {
    if (!layout_.cuts_weights()) return {};
    return {{rows}, {{0, cols}}};
  }

  Block declare_block(int64_t layer) {
    const auto& c = config_;
    const int64_t d = c.resolved_head_dim(), q = c.heads * d, kv = c.kv_heads * d, r = c.router_hidden;
    const int64_t classes = c.experts + (c.skip_class ? 1 : 0);
    parameters_.begin_layer(layer);
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::string mix = prefix + "self_attn.qkv_proj.", gate = prefix + "mlp.gate.";
    Block b{};
    b.attention_norm = &vector(prefix + "input_layernorm.weight", c.hidden, 1);
    const int64_t ranks = layout_.tensor.size;
    const auto values = value_rows(kv);
    // The channels of both convolutions: those of this rank's query heads, and those of its key heads.
    const auto latent = [&](tensor::Shape rest) -> tensor::Part {
      if (!layout_.cuts_weights()) return {};
      const auto keys = layout_.weight_share(kv);
      tensor::Part part = {{layout_.weight_share(q), {q + keys.begin, q + keys.end}}};
      for (const int64_t n : rest) part.push_back({{0, n}});
      return part;
    };
    b.attention = {.shape = {c.heads / ranks, c.kv_heads / ranks, d, layout_.tensor.is_on() ? values.current.size() : kv / 2},
                   .window = c.window_of(layer),
                   .rotary = rotary_settings(c, layer),
                   .q = &matrix(mix + "q_proj.weight", {q, c.hidden}, cut_rows(q, c.hidden)),
                   .k = &matrix(mix + "k_proj.weight", {kv, c.hidden}, cut_rows(kv, c.hidden)),
                   .current_value = &matrix(mix + "v_proj_current.weight", {kv / 2, c.hidden}, rows_part(values.current, c.hidden)),
                   .delayed_value = &matrix(mix + "v_proj_delayed.weight", {kv / 2, c.hidden}, rows_part(values.delayed, c.hidden)),
                   .depthwise_weight = &convolution(mix + "conv_qk_depthwise.weight", {q + kv, 1, 2}, latent({1, 2})),
                   .depthwise_bias = &vector(mix + "conv_qk_depthwise.bias", q + kv, 0, latent({})),
                   .grouped_weight = &convolution(mix + "conv_qk_grouped.weight", {q + kv, d, 2}, latent({d, 2})),
                   .grouped_bias = &vector(mix + "conv_qk_grouped.bias", q + kv, 0, latent({})),
                   // 1, not Hugging Face's 0, with which keys vanish and q and k get no gradient (facts §4.0 d).
                   .temperature = &vector(prefix + "self_attn.qk_norm.temp", c.kv_heads, 1, cut_vector(c.kv_heads)),
                   .o = &matrix(prefix + "self_attn.o_proj.weight", {c.hidden, q}, cut_columns(c.hidden, q))};
    b.after_attention = scales(prefix + "post_attention_residual_scale.");
    b.mixture_norm = &vector(prefix + "post_attention_layernorm.weight", c.hidden, 1);
    b.router = {.down_weight = &router_matrix(gate + "down_proj.weight", {r, c.hidden}),
                .down_bias = &vector(gate + "down_proj.bias", r, 0),
                .state_scale = layer == 0 ? nullptr : &vector(gate + "router_states_scale", r, 1),
                .norm_weight = &vector(gate + "router_mlp.norm.weight", r, 1),
                .fc1_weight = &router_matrix(gate + "router_mlp.fc1.weight", {r, r}),
                .fc1_bias = &vector(gate + "router_mlp.fc1.bias", r, 0),
                .fc2_weight = &router_matrix(gate + "router_mlp.fc2.weight", {r, r}),
                .fc2_bias = &vector(gate + "router_mlp.fc2.bias", r, 0),
                .out_weight = &router_matrix(gate + "router_mlp.out_proj.weight", {classes, r}),
                .balancing_bias = &parameters_.add(
                    {.name = gate + "balancing_biases", .shape = {classes}, .kind = Parameter::Kind::buffer, .keeps_fp32 = true}),
                .experts = c.experts};
    b.gate_up = &matrix(prefix + "mlp.experts.gate_up_proj", {c.experts, 2 * c.expert_ffn, c.hidden});
    b.down = &matrix(prefix + "mlp.experts.down_proj", {c.experts, c.hidden, c.expert_ffn});
    if (const auto& own = layout_.experts; own.is_on()) {
      const auto experts = tensor::share_of(c.experts, own.rank, own.size), inner = tensor::share_of(c.expert_ffn, own.slice, own.slices);
      b.gate_up->part = {{experts}, {inner, {c.expert_ffn + inner.begin, c.expert_ffn + inner.end}}, {{0, c.hidden}}};
      b.down->part = {{experts}, {{0, c.hidden}}, {inner}};
      b.gate_up->is_expert = b.down->is_expert = true;
    }
    b.after_mixture = scales(prefix + "post_mlp_residual_scale.");
    return b;
  }

  Parameter *input_scale_ = nullptr, *input_bias_ = nullptr, *norm_ = nullptr;
  std::vector<Block> blocks_;
};

ModelConfig from_hugging_face(const nlohmann::json& json) {
  const HuggingFaceFields fields(json);
  ModelConfig c = fields.common();
  c.family = "zaya1";
  c.experts = fields.integer("num_experts");
  c.top_k = fields.integer("num_experts_per_tok", 1);
  c.expert_ffn = fields.integer("moe_intermediate_size");
  c.router_hidden = fields.integer("router_hidden_size");
  for (const char* width : {"cca_time0", "cca_time1"}) {
    if (fields.integer(width, 2) != 2)
      throw base::ModelError("{}: {} = {}, but only convolutions of width 2 exist", fields.origin(), width, fields.integer(width));
  }
  fields.refuse_unless("hidden_act", "silu");
  fields.refuse_if_true("attention_bias");
  fields.refuse_if_true("lm_head_bias");
  fields.read_layer_types(c, {{"hybrid", "full"}, {"hybrid_sliding", "sliding"}});
  fields.read_rope(c, fields.rope("hybrid"));
  if (const auto sliding = fields.rope("hybrid_sliding"); sliding.is_object())
    c.rope_base_sliding = HuggingFaceFields(sliding).number("rope_theta");
  return c;
}

nlohmann::json to_hugging_face(const ModelConfig& c) {
  if (!c.skip_class) throw base::ModelError("a zaya1 without the skip class (model.skip_class = false) has no Hugging Face form");
  auto json = common_hugging_face_config(c);
  json["model_type"] = "zaya";
  json["architectures"] = {"ZayaForCausalLM"};
  json["num_experts"] = c.experts;
  json["num_experts_per_tok"] = c.top_k;
  json["moe_intermediate_size"] = c.expert_ffn;
  json["router_hidden_size"] = c.router_hidden;
  json["cca_time0"] = json["cca_time1"] = 2;
  json["hidden_act"] = "silu";
  json["attention_bias"] = json["lm_head_bias"] = false;
  json["sliding_window"] = c.window > 0 ? nlohmann::json(c.window) : nlohmann::json();
  json["layer_types"] = nlohmann::json::array();
  for (int64_t layer = 0; layer < c.layers; ++layer) json["layer_types"].push_back(c.is_sliding(layer) ? "hybrid_sliding" : "hybrid");
  json["rope_parameters"] = {{"hybrid", hugging_face_rope(c, c.rope_base)}, {"hybrid_sliding", hugging_face_rope(c, c.rope_base_sliding)}};
  return json;
}

}  // namespace

Family zaya1_family() {
  return {"zaya1", "zaya",
          [](const ModelConfig& c, const Layout& layout) -> std::unique_ptr<Model> { return std::make_unique<Zaya1>(c, layout); },
          from_hugging_face, to_hugging_face};
}

}  // namespace ingot::models
