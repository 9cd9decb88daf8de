#include "models/model.h"

#include "base/error.h"
#include "base/text.h"
#include "layers/embedding.h"
#include "layers/head.h"
#include "layers/recompute.h"

namespace ingot::models {

using layers::Parameter;

Recompute recompute_from_name(const std::string& name) {
  if (name == "none") return Recompute::none;
  if (name == "selective") return Recompute::selective;
  if (name == "full") return Recompute::full;
  throw base::ConfigError("unknown recompute mode '{}'; it is none, selective or full", name);
}

void Model::allocate(at::ScalarType dtype, at::Device device) {
  dtype_ = dtype;
  device_ = device;
  parameters_.allocate(dtype, device);
}

namespace {

// When the gradient of what enters a layer is complete, so are those of the layer's own parameters: the engine runs the nodes that
// were made last first, and a tensor's hook just before the node that made the tensor.
void listen(const at::Tensor& entering, int64_t layer, const ForwardContext& context) {
  if (!context.backward || !entering.requires_grad()) return;
  entering.register_hook([listener = context.backward, layer](const at::Tensor&) { listener->on_layer_done(layer); });
}

}  // namespace

at::Tensor Model::forward(const at::Tensor& ids, ForwardContext& context) {
  Stream stream = embed(ids);
  if (context.observer) context.observer->on_hidden(-1, stream.residual);
  listen(stream.residual, 0, context);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    if (context.recompute == Recompute::full && at::GradMode::is_enabled()) {
      // The context is copied: the second run happens during backward, when the caller's may be gone.
      auto run = [this, layer, copy = context](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
        copy.recompute = Recompute::none;
        if (layers::is_recomputing()) copy.observer = nullptr;
        const Stream out = block(layer, {in[0], in[1]}, copy);
        if (!out.router_state.defined()) return {out.residual};
        return {out.residual, out.router_state};
      };
      const auto out = layers::recompute(run, {stream.residual, stream.router_state});
      stream = {out[0], out.size() > 1 ? out[1] : at::Tensor()};
    } else {
      stream = block(layer, stream, context);
    }
    if (context.observer) context.observer->on_hidden(layer, stream.residual);
    listen(stream.residual, layer + 1, context);
  }
  return finish(stream);
}

at::Tensor Model::loss(const at::Tensor& ids, const at::Tensor& targets, double scale, ForwardContext& context) {
  return layers::head_loss(forward(ids, context), *head_, targets, scale);
}

at::Tensor Model::logits(const at::Tensor& hidden) const { return layers::logits_of(hidden, *head_); }

void Model::describe_embedding(layers::Workload& work) const {
  work.kernel("embedding", {}, {work.wide(config_.hidden)}, {work.indices(work.tokens())});
}

void Model::describe_head(layers::Workload& work) const {
  const auto residual = work.enter(work.wide(config_.hidden)), hidden = work.narrow(config_.hidden);
  work.kernel("rms_norm", {residual}, {hidden}, {residual, work.wide(1)});
  // Logits, loss and both gradients of a chunk of rows while its logits exist (layers/head.h).
  const int64_t chunk = layers::head_chunk_rows(work.tokens(), config_.vocab_size), chunks = (work.tokens() + chunk - 1) / chunk;
  const int64_t logits_bytes =
      chunk * config_.vocab_size * (work.wide_bytes() + (work.element_bytes() < work.wide_bytes() ? work.element_bytes() : 0));
  const auto grad_hidden = work.narrow(config_.hidden), logits = work.wide(config_.vocab_size, std::min(chunk, work.tokens()));
  auto& products = work.linear(hidden, logits);
  products.name = "head";
  products.element_bytes = work.element_bytes();  // of the operands
  products.rows = (work.tokens() + chunks - 1) / chunks;
  products.count = chunks;
  products.outputs = {grad_hidden};
  products.saved = {grad_hidden};
  products.forward_scratch_bytes = logits_bytes;
  work.kernel("cross_entropy", {}, {work.wide(1)}, {}, work.tokens(), config_.vocab_size);
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

Parameter& Model::matrix(const std::string& name, tensor::Shape shape) {
  return parameters_.add({.name = name,
                          .shape = std::move(shape),
                          .kind = Parameter::Kind::matrix,
                          .initial = tensor::Initial::normal(config_.init_deviation)});
}

Parameter& Model::vector(const std::string& name, int64_t size, double initial) {
  return parameters_.add(
      {.name = name, .shape = {size}, .kind = Parameter::Kind::vector, .initial = tensor::Initial::constant(initial), .keeps_fp32 = true});
}

}  // namespace ingot::models
