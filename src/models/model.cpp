#include "models/model.h"

#include <ATen/core/grad_mode.h>

#include <cassert>

#include "base/error.h"
#include "base/work_scope.h"
#include "kernels/norm.h"
#include "layers/attach_loss.h"
#include "layers/cca_attention.h"
#include "layers/linear.h"
#include "layers/recompute.h"
#include "models/adapters.h"

namespace ingot::models {

using layers::Parameter;

Recompute recompute_from_name(const std::string& name) {
  if (name == "none") return Recompute::none;
  if (name == "selective") return Recompute::selective;
  if (name == "full") return Recompute::full;
  throw base::ConfigError("unknown recompute mode '{}'; it is none, selective or full", name);
}

std::unique_ptr<Model> create_model(const ModelConfig& config, const parallel::Layout& layout) {
  check_common(config);
  return std::make_unique<Model>(config, layout);
}

Model::Model(ModelConfig config, const parallel::Layout& layout)
    : config_(std::move(config)), layout_(layout), block_(config_, layout_, parameters_) {
  require_drafts_fit();
  block_.schedule().require_shares("vocab_size", config_.vocab_size);
  const auto parts = layer_parts(config_);
  make_blocks(parts);
  if (layout_.stage.has_embedding()) declare_embedding();
  for (size_t layer = 0; layer < parts.size(); ++layer)
    if (layout_.stage.holds(static_cast<int64_t>(layer))) declare(static_cast<int64_t>(layer), parts[layer], blocks_[layer]);
  parameters_.begin_layer(config_.layers);
  if (layout_.stage.has_head()) norm_.declare_last(block_, "model.norm.weight", parts.front().norm_weight);
  if (layout_.stage.has_head()) {
    declare_head();
    declare_predictors(parts.back());
  }
  declare_adapters(config_, layout_, parameters_);
  head_rule_.logit_cap = config_.logit_cap;
}

void Model::require_drafts_fit() const {
  if (config_.draft_block == 0) return;
  for (const auto& [name, is_on] : {std::pair{"parallel.pipeline", layout_.stage.is_on()},
                                    {"parallel.context", layout_.sequence.is_on() && !layout_.tensor_sequence.is_on()},
                                    {"parallel.tensor_sequence", layout_.tensor_sequence.is_on()},
                                    {"model.mtp_layers", config_.mtp_layers > 0}})
    if (is_on)
      throw base::ConfigError("model.draft_block = {} does not go with {}: drafts lie behind the tokens of their row", config_.draft_block,
                              name);
}

void Model::make_blocks(const std::vector<LayerParts>& all) {
  const auto add = [&](const LayerParts& parts) {
    const auto layer = static_cast<int64_t>(blocks_.size());
    const bool follows_router = router_state_width() > 0;
    auto& block = blocks_.emplace_back();
    block.mixer = make_mixer(parts, block_, layer);
    block.feed_forward = make_feed_forward(parts, block_, layer, follows_router);
    block.after_mixer = block.after_feed_forward = ResidualAdd(parts.residual);
  };
  for (const auto& parts : all) add(parts);
  for (int64_t i = 0; i < config_.mtp_layers; ++i) add(all.back());
  if (layout_.experts.is_on() && !has_experts())
    throw base::ConfigError("parallel.expert = {}, expert_tensor = {}: the {} family has no experts; both must be 1", layout_.experts.size,
                            layout_.experts.slices, config_.family);
  if (layout_.stage.is_on() && router_state_width() > 0 && at(0).feed_forward->router_state_width() == 0)
    throw base::ConfigError(
        "parallel.pipeline = {}: stages pass on the state of routers, so the first layer must have one; put moe first in "
        "model.feed_forwards",
        layout_.stage.size);
}

// Under the names of Llama, OLMo 2 and Gemma: "post_attention_layernorm" is the feed-forward's norm only where none is behind a branch.
void Model::declare(int64_t layer, const LayerParts& parts, Block& b) {
  parameters_.begin_layer(std::min(layer, config_.layers));
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const auto norm = [&](Norm& of, const char* name) { of.declare(block_, prefix + name, parts.norm_weight); };
  if (parts.norms != NormPlacement::after) norm(b.before_mixer, "input_layernorm.weight");
  b.mixer->declare(prefix);
  b.after_mixer.declare(block_, prefix + "post_attention_residual_scale.");
  norm(parts.norms == NormPlacement::before ? b.before_feed_forward : b.behind_mixer, "post_attention_layernorm.weight");
  if (parts.norms == NormPlacement::around) norm(b.before_feed_forward, "pre_feedforward_layernorm.weight");
  b.feed_forward->declare(prefix);
  if (parts.norms != NormPlacement::before) norm(b.behind_feed_forward, "post_feedforward_layernorm.weight");
  b.after_feed_forward.declare(block_, prefix + "post_mlp_residual_scale.");
}

// Under DeepSeek's names.
void Model::declare_predictors(const LayerParts& parts) {
  for (int64_t i = 0; i < config_.mtp_layers; ++i) {
    const int64_t layer = config_.layers + i, hidden = config_.hidden;
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    auto& p = predictors_.emplace_back();
    p.of_embedding.declare(block_, prefix + "enorm.weight", parts.norm_weight);
    p.of_state.declare(block_, prefix + "hnorm.weight", parts.norm_weight);
    p.join = &block_.matrix(prefix + "eh_proj.weight", {hidden, 2 * hidden});
    declare(layer, parts, blocks_[static_cast<size_t>(layer)]);
    p.last.declare_last(block_, prefix + "shared_head.norm.weight", parts.norm_weight);
  }
  if (config_.mtp_layers > 0) embedding_->last_layer = config_.layers;
}

// Where the head is made of the embedding, or predictors embed further tokens, both ends of a pipeline have one.
void Model::declare_embedding() {
  embedding_ = &vocabulary_matrix("model.embed_tokens.weight", Parameter::Kind::embedding);
  embedding_->is_at_both_ends = config_.tie_embeddings || config_.mtp_layers > 0;
  const auto scale_of_family = family_named(config_.family).embedding_scale;
  embedding_scale_ = config_.embedding_scale > 0 ? config_.embedding_scale : scale_of_family ? scale_of_family(config_) : 1;
  const bool embeds = layout_.stage.has_embedding() || config_.mtp_layers > 0;  // a tied head does not
  if (embeds && at(0).after_mixer.is_scaled()) input_scale_.declare(block_, "model.input_hidden_states_", config_.mtp_layers > 0);
}

void Model::declare_head() {
  if (!embedding_ && (config_.tie_embeddings || config_.mtp_layers > 0)) declare_embedding();
  head_ = config_.tie_embeddings ? embedding_ : &vocabulary_matrix("lm_head.weight", Parameter::Kind::head);
  head_->last_layer = config_.layers;
}

Parameter& Model::vocabulary_matrix(const char* name, Parameter::Kind kind) {
  return parameters_.add({.name = name,
                          .shape = {config_.vocab_size, config_.hidden},
                          .part = block_.cut_rows(config_.vocab_size, config_.hidden),
                          .kind = kind,
                          .initial = tensor::Initial::normal(config_.init_std)});
}

void Model::set_precision(const layers::Precision& precision, at::Device device) {
  block_.set_dtype(precision.dtype);
  device_ = device;
  for (const auto& p : parameters_.all())
    if (p->kind == Parameter::Kind::matrix && !p->keeps_fp32 && p->layer > 0 && p->layer < config_.layers - 1)
      p->quantization = precision.quantization;
  for (const auto& p : parameters_.all())  // far too thin for FP8
    if (is_adapter(p->name)) p->quantization.reset();
}

void Model::allocate(const layers::Precision& precision, at::Device device) {
  set_precision(precision, device);
  parameters_.allocate(precision.dtype, device);
}

void Model::take_values(const layers::Precision& precision, at::Device device,
                        const std::function<at::Tensor(const Parameter&, at::ScalarType dtype)>& value_of) {
  set_precision(precision, device);
  for (const auto& p : parameters_.all()) {
    p->value = value_of(*p, precision.dtype == at::kBFloat16 && p->keeps_fp32 ? at::kFloat : precision.dtype);
    p->value.set_requires_grad(p->is_trained());
  }
}

void Model::initialise(uint64_t seed) {
  parameters_.initialise(seed);
  for (int64_t layer = 0; layer < blocks(); ++layer)
    if (is_here(layer)) at(layer).feed_forward->initialise();
}

bool Model::is_here(int64_t layer) const { return layer < config_.layers ? layout_.stage.holds(layer) : layout_.stage.has_head(); }

int64_t Model::routing_classes() const {
  int64_t classes = 0;
  for (const auto& block : blocks_) classes = std::max(classes, block.feed_forward->classes());
  return classes;
}

int64_t Model::router_state_width() const {
  int64_t width = 0;
  for (const auto& block : blocks_) width = std::max(width, block.feed_forward->router_state_width());
  return width;
}

std::vector<LayerCache> Model::new_caches() const {
  std::vector<LayerCache> caches(static_cast<size_t>(config_.layers));
  const auto& axis = layout_.tensor_sequence;
  for (auto& cache : caches) cache.key_values = layers::KeyValueCache({.rank = axis.rank, .ranks = axis.size});
  return caches;
}

int64_t Model::halo() const {
  int64_t halo = layers::kCcaHalo;  // also where no layer looks so far: shorter pieces of a sequence gain nobody anything
  for (const auto& block : blocks_) halo = std::max(halo, block.mixer->halo());
  return halo;
}

int64_t Model::active_elements() const {
  int64_t idle = 0;
  for (const auto& block : blocks_) idle += block.feed_forward->idle_elements();
  return parameters_.weight_elements() - embedding_->elements() - (head_ == embedding_ ? 0 : head_->elements()) - idle;
}

std::vector<at::Tensor> Model::watch_scores() {
  std::vector<at::Tensor> largest(static_cast<size_t>(blocks()));
  for (int64_t layer = 0; layer < blocks(); ++layer)
    if (is_here(layer)) largest[static_cast<size_t>(layer)] = at(layer).mixer->watch_scores(device_);
  return largest;
}

void Model::set_rope_base(double base) {
  config_.rope_base = base;
  for (int64_t layer = 0; layer < blocks(); ++layer)
    if (!config_.is_sliding(layer)) at(layer).mixer->set_rope_base(base);
}

namespace {

// When the gradient of what enters a layer is complete, so are those of the layer's own parameters: the engine runs the nodes that
// were made last first, and a tensor's hook just before the node that made the tensor. A leaf has no such node: its hook would run
// among the last gradients of the layer's parameters.
void listen(const at::Tensor& entering, int64_t layer, const ForwardContext& context) {
  if (!context.hooks || !entering.requires_grad()) return;
  entering.register_hook([hooks = context.hooks, layer](const at::Tensor&) {
    hooks->after_backward(layer);
    if (layer > 0) hooks->before_backward(layer - 1);
  });
}

}  // namespace

Stream Model::run_chunk(int chunk, const at::Tensor& ids, const Stream& in, ForwardContext& context) {
  if (config_.bidirectional) context.sequences->see_both_ways();
  LayerHooks silent;
  LayerHooks& hooks = context.hooks ? *context.hooks : silent;
  const auto& stage = layout_.stage;
  const auto layers =
      stage.pieces.empty() ? tensor::Range{0, config_.layers} : stage.pieces[static_cast<size_t>(chunk * stage.size + stage.rank)];
  Stream stream = in;
  if (stage.is_first(chunk)) {
    hooks.before_forward(-1);
    const base::WorkScope scope("embedding", base::WorkKind::embedding);
    stream = embed(ids, context);
    hooks.after_forward(-1);
    if (context.observer) context.observer->on_hidden(-1, stream.residual);
  }
  // Of a frozen embedding nothing is recorded, but the adapters behind it want their gradients, through recomputed pieces, too.
  if (at::GradMode::is_enabled() && config_.lora_rank > 0 && !stream.residual.requires_grad()) stream.residual.set_requires_grad(true);
  // What another stage sent is a leaf.
  if (context.hooks && stream.residual.is_leaf()) stream.residual = stream.residual.view_as(stream.residual);
  listen(stream.residual, layers.begin, context);
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    const std::string name = fmt::format("layer {}", layer);
    const base::WorkScope scope(name.c_str());
    hooks.before_forward(layer);
    stream = run_block_of(layer, stream, context);
    if (context.observer) context.observer->on_hidden(layer, stream.residual);
    hooks.after_forward(layer);
    listen(stream.residual, layer + 1, context);
  }
  return stream;
}

at::Tensor Model::normed(const Norm& norm, const at::Tensor& branch) const {
  const auto normed = norm.is_there() ? norm(branch, block_) : branch;
  return config_.residual_scale == 1 ? normed : normed * config_.residual_scale;
}

std::pair<at::Tensor, at::Tensor> Model::join_and_norm(const Block& b, const at::Tensor& residual, const at::Tensor& mixed) const {
  const auto branch = normed(b.behind_mixer, mixed);
  if (b.before_feed_forward.is_there())
    return kernels::join_residual_and_norm(residual, branch, b.after_mixer.values(), b.before_feed_forward.weight(), config_.norm_eps,
                                           dtype());
  const auto joined = kernels::join_residual(residual, branch, b.after_mixer.values());
  return {joined, joined.to(dtype())};
}

Stream Model::run_block_of(int64_t layer, const Stream& stream, ForwardContext& context) {
  const bool again = context.recompute == Recompute::full && at::GradMode::is_enabled();
  return again ? run_block_again_in_backward(layer, stream, context) : run_block(layer, stream, context);
}

Stream Model::run_block(int64_t layer, const Stream& stream, ForwardContext& context) {
  const Block& b = at(layer);
  const auto mixed = b.mixer->mix(b.before_mixer(stream.residual, block_), context);
  // The context is copied: with recomputation this runs again during backward, when the caller's may be gone.
  auto second_half = [this, &b, copy = context](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const auto [joined, x] = join_and_norm(b, in[0], in[1]);
    const auto [branch, state] = b.feed_forward->forward(x, in[2], copy);
    const auto residual = kernels::join_residual(joined, normed(b.behind_feed_forward, branch), b.after_feed_forward.values());
    return state.defined() ? std::vector{residual, state} : std::vector{residual};
  };
  const bool again = context.recompute == Recompute::selective && at::GradMode::is_enabled();
  const std::vector<at::Tensor> in = {stream.residual, mixed, stream.router_state};
  const auto out = again ? layers::recompute(second_half, in) : second_half(in);
  return {out[0], out.size() > 1 ? out[1] : stream.router_state};
}

Stream Model::run_block_again_in_backward(int64_t layer, const Stream& stream, const ForwardContext& context) {
  auto run = [this, layer, copy = context](const std::vector<at::Tensor>& from) mutable -> std::vector<at::Tensor> {
    copy.recompute = Recompute::none;
    if (layers::is_recomputing()) copy.observer = nullptr;
    const Stream out = run_block(layer, {from[0], from[1]}, copy);
    if (!out.router_state.defined() || out.router_state.is_same(from[1])) return {out.residual};
    return {out.residual, out.router_state};
  };
  const auto out = layers::recompute(run, {stream.residual, stream.router_state}, context.offload);
  return {out[0], out.size() > 1 ? out[1] : stream.router_state};
}

Stream Model::embed(const at::Tensor& ids, const ForwardContext& context) const {
  const auto wide = dtype() == at::kDouble ? at::kDouble : at::kFloat;
  const auto embedded = block_.schedule().embed(ids, *embedding_, wide, *context.sequences);
  return {input_scale_(embedding_scale_ == 1 ? embedded : embedded * embedding_scale_), {}};
}

at::Tensor Model::finish(const Stream& stream) const { return norm_(stream.residual, block_); }

at::Tensor Model::forward(const at::Tensor& ids, ForwardContext& context) {
  const Stream stream = run_chunk(0, ids, {}, context);
  if (context.hooks) context.hooks->before_forward(config_.layers);
  return finish(stream);
}

at::Tensor Model::loss_of(const Stream& stream, const at::Tensor& targets, double scale, ForwardContext& context) {
  if (context.hooks) context.hooks->before_forward(config_.layers);
  const auto normed = finish(stream);
  auto loss = head_loss(normed, targets, scale, context);
  if (context.further && !predictors_.empty()) loss = with_further_losses(loss, normed, stream.router_state, scale, context);
  if (context.hooks) context.hooks->after_forward(config_.layers);
  return loss;
}

at::Tensor Model::head_loss(const at::Tensor& normed, const at::Tensor& targets, double scale, const ForwardContext& context) const {
  auto rule = head_rule_;
  rule.weigh = context.weigh;
  rule.losses = context.losses;
  return block_.schedule().head_loss(normed, *head_, targets, scale, rule, *context.sequences);
}

at::Tensor Model::with_further_losses(const at::Tensor& loss, const at::Tensor& normed, const at::Tensor& router_state, double scale,
                                      ForwardContext& context) {
  const auto& further = *context.further;
  const double each = further.coefficient / static_cast<double>(predictors_.size());
  const auto losses = std::exchange(context.losses, {});  // of the model's head alone
  at::Tensor sum, state = normed;
  for (size_t i = 0; i < predictors_.size(); ++i) {
    const auto& predictor = predictors_[i];
    const std::string name = fmt::format("predictor {}", i);
    const base::WorkScope scope(name.c_str());
    const auto embedded = predictor.of_embedding(embed(further.ids[i], context).residual, block_);
    const auto joined = layers::linear(device::cat({embedded, predictor.of_state(state, block_)}, -1), {predictor.join});
    state = run_block_of(config_.layers + static_cast<int64_t>(i),
                         {joined.to(dtype() == at::kDouble ? at::kDouble : at::kFloat), router_state}, context)
                .residual;
    const auto own = head_loss(predictor.last(state, block_), further.targets[i], scale * each, context);
    sum = sum.defined() ? sum + own : own;
  }
  context.losses = losses;
  if (further.total.defined()) further.total.add_(sum.detach(), 1 / further.coefficient);
  return layers::attach_loss(loss, sum);
}

std::shared_ptr<const FurtherTargets> Model::further_like(const at::Tensor& ids) const {
  if (predictors_.empty()) return nullptr;
  const std::vector all(predictors_.size(), ids);
  return std::make_shared<FurtherTargets>(FurtherTargets{.coefficient = 1, .ids = all, .targets = all, .total = {}});
}

at::Tensor Model::loss(const at::Tensor& ids, const at::Tensor& targets, double scale, ForwardContext& context) {
  if (config_.draft_block > 0 && context.learns_drafts) return loss_with_drafts(ids, targets, scale, context);
  return loss_of(run_chunk(0, ids, {}, context), targets, scale, context);
}

// Rows of tokens and behind them as many masks, whose targets are the tokens themselves where the token before has them as its next.
at::Tensor Model::loss_with_drafts(const at::Tensor& ids, const at::Tensor& targets, double scale, ForwardContext context) {
  const int64_t seq = ids.size(1);
  auto own = device::cat({at::full_like(targets.narrow(1, 0, 1), -100), targets.narrow(1, 0, seq - 1)}, 1);
  // Where a document was cut, the target before it is the token that follows the cut.
  if (const auto& is_start = context.sequences->is_start(); is_start.defined()) own.masked_fill_(is_start, -100);
  context.sequences = layers::Sequences::with_drafts(context.sequences, config_.draft_block);
  const at::Tensor total = context.draft_loss, losses = context.losses;
  const auto wide = dtype() == at::kDouble ? at::kDouble : at::kFloat;
  if (total.defined() || losses.defined())
    context.losses = at::empty({ids.size(0), 2 * seq}, at::TensorOptions().dtype(wide).device(device_));
  const auto both = run_chunk(0, device::cat({ids, at::full_like(ids, config_.draft_mask_id)}, 1), {}, context);
  const auto loss = loss_of(both, device::cat({targets, own}, 1), scale / 2, context);
  if (total.defined()) total.add_(context.losses.narrow(1, seq, seq).sum(), scale);
  if (losses.defined()) losses.copy_((context.losses.narrow(1, 0, seq) + context.losses.narrow(1, seq, seq)) / 2);
  return loss;
}

at::Tensor Model::logits(const at::Tensor& hidden) const {
  const auto logits = block_.schedule().logits(hidden, *head_);
  layers::cap_logits(logits, config_.logit_cap, false);
  return logits;
}

}  // namespace ingot::models
