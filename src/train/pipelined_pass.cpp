#include "train/pipelined_pass.h"

#include <ATen/core/grad_mode.h>

#include "base/work_scope.h"
#include "kernels/differentiable.h"

namespace ingot::train {

PipelinedPass::PipelinedPass(models::Model& model, std::vector<Microbatch> microbatches, double scale, ContextFor context_for,
                             parallel::Buckets* buckets, bool splits_backward)
    : model_(model),
      microbatches_(std::move(microbatches)),
      scale_(scale),
      context_for_(std::move(context_for)),
      buckets_(buckets),
      splits_backward_(splits_backward) {}

std::vector<at::Tensor> PipelinedPass::empty_stream() {
  const auto& ids = microbatches_.front().ids;
  const auto& tensor = model_.layout().tensor;
  const bool is_sharded = tensor.is_on() && tensor.shards_tokens;
  const int64_t rows = ids.numel() / (is_sharded ? tensor.size : 1), hidden = model_.config().hidden, state = model_.router_state_width();
  const auto options = at::TensorOptions().dtype(model_.dtype() == at::kDouble ? at::kDouble : at::kFloat).device(model_.device());
  std::vector<at::Tensor> stream = {is_sharded ? at::empty({1, rows, hidden}, options)
                                               : at::empty({ids.size(0), ids.size(1), hidden}, options)};
  if (state > 0) stream.push_back(at::empty({rows, state}, options));
  return stream;
}

std::vector<at::Tensor> PipelinedPass::forward(int chunk, int microbatch, const std::vector<at::Tensor>& in) {
  const base::WorkScope named("forward", base::Work::Rule::forward);
  const bool trains = at::GradMode::is_enabled();
  const auto& part = microbatches_[static_cast<size_t>(microbatch)];
  auto kept = std::make_unique<Kept>();
  kept->context = context_for_(part);
  models::Stream stream;
  for (const auto& tensor : in) kept->in.push_back(tensor.detach().set_requires_grad(trains));
  if (!in.empty()) stream = {kept->in[0], kept->in.size() > 1 ? kept->in[1] : at::Tensor()};
  const layers::DeferredGradients::Scope scope(splits_backward_ ? &kept->deferred : nullptr);
  stream = model_.run_chunk(chunk, part.ids, stream, kept->context);
  if (model_.layout().stage.is_last(chunk)) {
    if (buckets_ && trains) buckets_->begin_backward(is_last(microbatch));  // the head makes its gradient now
    kept->out = {model_.loss_of(stream, part.targets, scale_, kept->context)};
    loss_.add(kept->out[0]);
  } else {
    kept->out = {stream.residual};
    if (stream.router_state.defined()) kept->out.push_back(stream.router_state);
  }
  std::vector<at::Tensor> sent;
  if (!model_.layout().stage.is_last(chunk))
    for (const auto& tensor : kept->out) sent.push_back(tensor.detach());
  if (trains) kept_[{chunk, microbatch}] = std::move(kept);
  return sent;
}

std::vector<at::Tensor> PipelinedPass::backward(int chunk, int microbatch, const std::vector<at::Tensor>& gradients) {
  auto& kept = *kept_.at({chunk, microbatch});
  if (buckets_) buckets_->begin_backward(is_last(microbatch));
  {
    const layers::DeferredGradients::Scope scope(splits_backward_ ? &kept.deferred : nullptr);
    kernels::backward(kept.out, gradients);
  }
  model_.parameters().collect_gradients();
  std::vector<at::Tensor> sent;
  for (auto& leaf : kept.in) {
    sent.push_back(leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf));
    leaf.mutable_grad().reset();
  }
  kept.in.clear(), kept.out.clear();
  if (!splits_backward_) finish_gradients(chunk, microbatch);
  return sent;
}

void PipelinedPass::weights(int chunk, int microbatch) {
  if (buckets_) buckets_->begin_backward(is_last(microbatch));
  kept_.at({chunk, microbatch})->deferred.run();
  finish_gradients(chunk, microbatch);
}

void PipelinedPass::finish_gradients(int chunk, int microbatch) {
  kept_.erase({chunk, microbatch});
  // Of several chunks the model's first one is the last to finish.
  if (buckets_ && chunk == 0) buckets_->finish_backward();
}

}  // namespace ingot::train
