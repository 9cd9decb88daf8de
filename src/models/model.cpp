#include "models/model.h"

#include <ATen/core/grad_mode.h>

#include <cassert>

#include "base/error.h"
#include "base/text.h"
#include "base/work_scope.h"
#include "layers/embedding.h"
#include "layers/head.h"
#include "layers/recompute.h"
#include "layers/sharded_attention.h"
#include "layers/tensor_sequence/decoding.h"
#include "layers/tensor_sequence/describe_folded.h"
#include "layers/tensor_sequence/folded_attention.h"
#include "layers/tensor_sequence/folded_vocabulary.h"

namespace ingot::models {

using layers::Parameter;

Recompute recompute_from_name(const std::string& name) {
  if (name == "none") return Recompute::none;
  if (name == "selective") return Recompute::selective;
  if (name == "full") return Recompute::full;
  throw base::ConfigError("unknown recompute mode '{}'; it is none, selective or full", name);
}

void Model::allocate(at::ScalarType dtype, at::Device device) {
  assert(!layout_.only_described);
  dtype_ = dtype;
  device_ = device;
  parameters_.allocate(dtype, device);
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
  LayerHooks silent;
  LayerHooks& hooks = context.hooks ? *context.hooks : silent;
  const auto& stage = layout_.stage;
  const auto layers =
      stage.pieces.empty() ? tensor::Range{0, config_.layers} : stage.pieces[static_cast<size_t>(chunk * stage.size + stage.rank)];
  Stream stream = in;
  if (stage.is_first(chunk)) {
    hooks.before_forward(-1);
    const base::WorkScope scope("embedding");
    stream = embed(ids, context);
    hooks.after_forward(-1);
    if (context.observer) context.observer->on_hidden(-1, stream.residual);
  }
  // What another stage sent is a leaf.
  if (context.hooks && stream.residual.is_leaf()) stream.residual = stream.residual.view_as(stream.residual);
  listen(stream.residual, layers.begin, context);
  for (int64_t layer = layers.begin; layer < layers.end; ++layer) {
    const std::string name = fmt::format("layer {}", layer);
    const base::WorkScope scope(name.c_str());
    hooks.before_forward(layer);
    if (context.recompute == Recompute::full && at::GradMode::is_enabled()) {
      // The context is copied: the second run happens during backward, when the caller's may be gone.
      auto run = [this, layer, copy = context](const std::vector<at::Tensor>& from) mutable -> std::vector<at::Tensor> {
        copy.recompute = Recompute::none;
        if (layers::is_recomputing()) copy.observer = nullptr;
        const Stream out = block(layer, {from[0], from[1]}, copy);
        if (!out.router_state.defined()) return {out.residual};
        return {out.residual, out.router_state};
      };
      const auto out = layers::recompute(run, {stream.residual, stream.router_state});
      stream = {out[0], out.size() > 1 ? out[1] : at::Tensor()};
    } else {
      stream = block(layer, stream, context);
    }
    if (context.observer) context.observer->on_hidden(layer, stream.residual);
    hooks.after_forward(layer);
    listen(stream.residual, layer + 1, context);
  }
  return stream;
}

at::Tensor Model::forward(const at::Tensor& ids, ForwardContext& context) {
  const Stream stream = run_chunk(0, ids, {}, context);
  if (context.hooks) context.hooks->before_forward(config_.layers);
  return finish(stream);
}

at::Tensor Model::loss_of(const Stream& stream, const at::Tensor& targets, double scale, ForwardContext& context) {
  if (context.hooks) context.hooks->before_forward(config_.layers);
  const auto hidden = enter(finish(stream), context);
  const auto loss = layout_.tensor_sequence.is_on() ? layers::folded_head_loss(hidden, *head_, targets, scale, layout_.tensor_sequence)
                                                    : layers::head_loss(hidden, *head_, targets, scale, layout_.tensor);
  if (context.hooks) context.hooks->after_forward(config_.layers);
  return loss;
}

at::Tensor Model::loss(const at::Tensor& ids, const at::Tensor& targets, double scale, ForwardContext& context) {
  return loss_of(run_chunk(0, ids, {}, context), targets, scale, context);
}

at::Tensor Model::logits(const at::Tensor& hidden) const {
  const auto own = layers::logits_of(hidden, *head_);
  const auto& folded = layout_.tensor_sequence;
  return folded.is_on() ? layers::gather_channels({own}, folded)[0] : own;
}

void Model::describe_embedding(layers::Workload& work) const { describe_lookup(work); }

layers::ActivationId Model::describe_lookup(layers::Workload& work) const {
  auto rows = work.wide(config_.hidden);
  if (const auto& folded = layout_.tensor_sequence; folded.is_on()) {
    layers::describe_folded_embedding(work, rows, config_.vocab_size, folded);
    return rows;
  }
  work.kernel("embedding", {}, {rows}, {work.indices(work.tokens())});
  if (layout_.tensor.is_on()) {
    const auto all = rows;
    work.kernel("copy", {all}, {rows = work.wide(config_.hidden, rows_between(work))}, {});
  }
  return rows;
}

layers::ActivationId Model::describe_enter(layers::Workload& work, layers::ActivationId x, int64_t width) const {
  if (!layout_.tensor.is_on() || !layout_.tensor.shards_tokens) return x;
  const auto all = work.narrow(width);
  work.kernel("copy", {x}, {all}, {});
  return all;
}

layers::ActivationId Model::describe_leave(layers::Workload& work, layers::ActivationId partial) const {
  if (!layout_.tensor.is_on()) return partial;
  const auto sum = work.narrow(config_.hidden, rows_between(work));
  work.kernel("copy", {partial}, {sum}, {});
  return sum;
}

void Model::describe_attention(layers::Workload& work, layers::ActivationId qkv, layers::ActivationId mixed, int64_t heads,
                               int64_t kv_heads, int64_t layer) const {
  auto& op = work.attention(qkv, mixed, heads, kv_heads, config_.resolved_head_dim(), config_.window_of(layer));
  if (layout_.sequence.is_on()) layers::describe_sharded(layout_.sequence, work, op);
}

void Model::describe_head(layers::Workload& work) const {
  const int64_t between = rows_between(work), vocab = config_.vocab_size / layout_.tensor.size;
  const auto residual = work.enter(work.wide(config_.hidden, between)), normed = work.narrow(config_.hidden, between);
  work.kernel("rms_norm", {residual}, {normed}, {residual, work.wide(1, between)});
  if (const auto& folded = layout_.tensor_sequence; folded.is_on())
    return layers::describe_folded_head(work, normed, config_.vocab_size, folded);
  const auto hidden = describe_enter(work, normed, config_.hidden);
  // Logits, loss and both gradients of a chunk of rows while its logits exist (layers/head.h).
  const int64_t chunk = layers::head_chunk_rows(work.tokens(), vocab, work.on_gpu()), chunks = (work.tokens() + chunk - 1) / chunk;
  const int64_t logits_bytes = chunk * vocab * (work.wide_bytes() + (work.element_bytes() < work.wide_bytes() ? work.element_bytes() : 0));
  const auto grad_hidden = work.narrow(config_.hidden), logits = work.wide(vocab, std::min(chunk, work.tokens()));
  auto& products = work.linear(hidden, logits);
  products.name = "head";
  products.element_bytes = work.element_bytes();  // of the operands
  products.rows = (work.tokens() + chunks - 1) / chunks;
  products.count = chunks;
  products.outputs = {grad_hidden};
  products.saved = {grad_hidden};
  products.forward_scratch_bytes = logits_bytes;
  auto& loss = work.kernel("cross_entropy", {}, {work.wide(1)}, {}, work.tokens(), vocab);
  // Logits are read, become their gradient, and are narrowed.
  const int64_t narrowed = work.element_bytes() < work.wide_bytes() ? work.wide_bytes() + work.element_bytes() : 0;
  loss.scratch_moved_bytes = static_cast<double>(work.tokens() * vocab) * static_cast<double>(2 * work.wide_bytes() + narrowed);
}

layers::Cost Model::block_cost(int64_t layer, int64_t batch, int64_t seq, int64_t element_bytes) const {
  layers::Workload work(batch, seq, element_bytes);
  describe_block(layer, work);
  return layers::cost_of(work);
}

layers::Cost Model::outer_cost(int64_t batch, int64_t seq, int64_t element_bytes) const {
  layers::Workload embedding(batch, seq, element_bytes), head(batch, seq, element_bytes);
  describe_embedding(embedding);
  describe_head(head);
  return layers::cost_of(embedding) + layers::cost_of(head);
}

layers::Cost Model::forward_cost(int64_t batch, int64_t seq, int64_t element_bytes) const {
  auto cost = outer_cost(batch, seq, element_bytes);
  for (int64_t layer = 0; layer < config_.layers; ++layer) cost += block_cost(layer, batch, seq, element_bytes);
  return cost;
}

double Model::training_flops_per_token(int64_t seq) const {
  return (1 + layers::kBackwardFactor) * forward_cost(1, seq, 4).flops / static_cast<double>(seq);
}

Parameter& Model::matrix(const std::string& name, tensor::Shape shape, tensor::Part part) {
  return parameters_.add({.name = name,
                          .shape = std::move(shape),
                          .part = std::move(part),
                          .kind = Parameter::Kind::matrix,
                          .initial = tensor::Initial::normal(config_.init_std)});
}

Parameter& Model::vector(const std::string& name, int64_t size, double initial, tensor::Part part) {
  return parameters_.add({.name = name,
                          .shape = {size},
                          .part = std::move(part),
                          .kind = Parameter::Kind::vector,
                          .initial = tensor::Initial::constant(initial),
                          .keeps_fp32 = true});
}

void Model::declare_embedding() {
  require_shares("vocab_size", config_.vocab_size);
  if (layout_.stage.has_embedding()) embedding_ = &vocabulary_matrix("model.embed_tokens.weight", Parameter::Kind::embedding);
}

void Model::declare_head() {
  if (!layout_.stage.has_head()) return;
  head_ = embedding_;
  // The last stage of a pipeline has a copy of a tied embedding, whose gradients are added to those of the first one's.
  if (!config_.tie_embeddings) head_ = &vocabulary_matrix("lm_head.weight", Parameter::Kind::head);
  else if (!head_) head_ = embedding_ = &vocabulary_matrix("model.embed_tokens.weight", Parameter::Kind::embedding);
  head_->last_layer = config_.layers;
}

Parameter& Model::vocabulary_matrix(const char* name, Parameter::Kind kind) {
  return parameters_.add({.name = name,
                          .shape = {config_.vocab_size, config_.hidden},
                          .part = cut_rows(config_.vocab_size, config_.hidden),
                          .kind = kind,
                          .initial = tensor::Initial::normal(config_.init_std)});
}

tensor::Part Model::cut_rows(int64_t rows, int64_t cols) const {
  if (!layout_.cuts_weights()) return {};
  return {{layout_.weight_share(rows)}, {{0, cols}}};
}

tensor::Part Model::cut_columns(int64_t rows, int64_t cols) const {
  if (!layout_.cuts_weights()) return {};
  return {{{0, rows}}, {layout_.weight_share(cols)}};
}

tensor::Part Model::cut_vector(int64_t size) const {
  if (!layout_.cuts_weights()) return {};
  return {{layout_.weight_share(size)}};
}

at::Tensor Model::embedded(const at::Tensor& ids, const ForwardContext& context) const {
  const auto wide = dtype() == at::kDouble ? at::kDouble : at::kFloat;
  if (folds(*context.sequences)) return layers::folded_embedding(ids, *embedding_, wide, layout_.tensor_sequence);
  return leave(layers::embedding(ids, *embedding_, wide));
}

void Model::require_heads() const {
  if (const auto& folded = layout_.tensor_sequence; folded.is_on())
    return layers::check_folded_heads(config_.heads, config_.kv_heads, config_.resolved_head_dim(), folded.size);
  require_shares("kv_heads", config_.kv_heads);
  layers::check_heads(layout_.sequence, config_.heads / layout_.tensor.size, config_.kv_heads / layout_.tensor.size);
}

void Model::require_shares(const char* name, int64_t value) const {
  const bool is_folded = layout_.tensor_sequence.is_on();
  const int64_t ranks = is_folded ? layout_.tensor_sequence.size : layout_.tensor.size;
  if (value % ranks == 0) return;
  std::vector<int64_t> good;
  for (int64_t n = 1; n <= std::min<int64_t>(value, 64); ++n)
    if (value % n == 0) good.push_back(n);
  throw base::ConfigError("parallel.{} = {} does not divide model.{} = {}; it may be {}", is_folded ? "tensor_sequence" : "tensor", ranks,
                          name, value, fmt::join(good, ", "));
}

}  // namespace ingot::models
