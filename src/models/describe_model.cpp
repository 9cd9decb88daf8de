// A model's forward pass as data (layers/workload.h); the parts describe themselves.
#include "layers/head.h"
#include "layers/tensor_sequence/describe_folded.h"
#include "models/model.h"

namespace ingot::models {

void Model::describe_embedding(layers::Workload& work) const {
  const auto rows = describe_lookup(work);
  if (!at(0).after_mixer.is_scaled()) return;
  const int64_t between = block_.rows_between(work);
  const auto biased = work.wide(config_.hidden, between);
  work.kernel("add", {rows}, {biased}, {});
  work.kernel("scale", {biased}, {work.wide(config_.hidden, between)}, {biased});
}

layers::ActivationId Model::describe_lookup(layers::Workload& work) const {
  auto rows = work.wide(config_.hidden);
  if (const auto& folded = layout_.tensor_sequence; folded.is_on()) {
    layers::describe_folded_embedding(work, rows, config_.vocab_size, folded);
    return rows;
  }
  work.kernel("embedding", {}, {rows}, {work.indices(work.tokens())});
  if (layout_.tensor.is_on()) {
    const auto all = rows;
    work.kernel("copy", {all}, {rows = work.wide(config_.hidden, block_.rows_between(work))}, {});
  }
  return rows;
}

void Model::describe_block(int64_t layer, layers::Workload& work) const {
  const int64_t between = block_.rows_between(work);
  const auto& b = at(layer);
  const bool scaled = b.after_mixer.is_scaled();
  const auto residual = work.enter(work.wide(config_.hidden, between)), normed = work.narrow(config_.hidden, between);
  work.kernel("rms_norm", {residual}, {normed}, {residual, work.wide(1, between)});
  const auto branch = b.mixer->describe(work, normed);
  work.begin_feed_forward();
  const auto joined = work.wide(config_.hidden, between), x = work.narrow(config_.hidden, between);
  work.kernel(scaled ? "scaled_join_norm" : "join_norm", {residual, branch}, {joined, x},
              {residual, branch, joined, work.wide(1, between)});
  const auto out = b.feed_forward->describe(work, x);
  work.kernel(scaled ? "scaled_join" : "join", {joined, out}, {work.wide(config_.hidden, between)}, {joined, out});
}

void Model::describe_head(layers::Workload& work) const {
  const int64_t between = block_.rows_between(work), vocab = config_.vocab_size / layout_.tensor.size;
  const auto residual = work.enter(work.wide(config_.hidden, between)), normed = work.narrow(config_.hidden, between);
  work.kernel("rms_norm", {residual}, {normed}, {residual, work.wide(1, between)});
  if (const auto& folded = layout_.tensor_sequence; folded.is_on())
    return layers::describe_folded_head(work, normed, config_.vocab_size, folded);
  const auto hidden = block_.describe_enter(work, normed, config_.hidden);
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

}  // namespace ingot::models
