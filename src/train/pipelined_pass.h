// The microbatches of one step on one stage of a pipeline: keeps what a chunk's forward pass leaves until its backward pass has
// used it, and tells the gradient buckets how far it has come.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "layers/deferred.h"
#include "models/model.h"
#include "parallel/buckets.h"
#include "parallel/pipeline.h"
#include "train/loss_sum.h"
#include "train/microbatch.h"

namespace ingot::train {

class PipelinedPass : public parallel::PipelineStage {
 public:
  /// `context_for` makes the context of a microbatch. All must outlive the pass.
  using ContextFor = std::function<models::ForwardContext(const Microbatch&)>;
  PipelinedPass(models::Model& model, std::vector<Microbatch> microbatches, double scale, ContextFor context_for,
                parallel::Buckets* buckets, bool splits_backward);

  /// Of the microbatches so far, on the last stage; 0 elsewhere.
  double loss() const { return loss_.total(); }

  std::vector<at::Tensor> empty_stream() override;
  std::vector<at::Tensor> forward(int chunk, int microbatch, const std::vector<at::Tensor>& in) override;
  std::vector<at::Tensor> backward(int chunk, int microbatch, const std::vector<at::Tensor>& gradients) override;
  void weights(int chunk, int microbatch) override;

 private:
  /// Of one microbatch in one chunk, between its passes.
  struct Kept {
    models::ForwardContext context;
    std::vector<at::Tensor> in, out;  // leaves that get the gradients to send; what backward starts from
    layers::DeferredGradients deferred;
  };
  void finish_gradients(int chunk, int microbatch);
  bool is_last(int microbatch) const { return microbatch + 1 == static_cast<int>(microbatches_.size()); }

  models::Model& model_;
  std::vector<Microbatch> microbatches_;
  double scale_;
  LossSum loss_;
  ContextFor context_for_;
  parallel::Buckets* buckets_;
  bool splits_backward_;
  std::map<std::pair<int, int>, std::unique_ptr<Kept>> kept_;  // by chunk and microbatch
};

}  // namespace ingot::train
