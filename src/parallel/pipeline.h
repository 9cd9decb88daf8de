// Runs one step of a pipeline stage: passes in the order of its schedule, activations and gradients as messages between
// stages, sent while the next pass computes.
//
// Bytes a rank sends per step: for each microbatch and each of its pieces what leaves it forwards (unless it is the model's last
// piece) and backwards (unless it is the first): residual stream and, where routers have one, their state.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "comm/group.h"
#include "device/aten.h"
#include "parallel/pipeline_schedule.h"

namespace ingot::parallel {

/// What a stage can do; a chunk is a piece of the model that lies here.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  /// New tensors of the shapes in which a stream, or its gradient, crosses from piece to piece.
  virtual std::vector<at::Tensor> empty_stream() = 0;
  /// `in` is empty for the model's first piece; returns what goes on, nothing from its last piece.
  virtual std::vector<at::Tensor> forward(int chunk, int microbatch, const std::vector<at::Tensor>& in) = 0;
  /// `gradients` of what forward returned, empty for the last piece; returns those of its input, nothing from the first piece.
  virtual std::vector<at::Tensor> backward(int chunk, int microbatch, const std::vector<at::Tensor>& gradients) = 0;
  /// Only under schedules that part it from backward.
  virtual void weights(int chunk, int microbatch) = 0;
};

/// `group`: the stages in order. Returns when this stage has done its actions and its messages have been taken. `forward_only`:
/// validation.
void run_pipeline(const PipelineShape& shape, comm::Group& group, PipelineStage& stage, bool forward_only = false);

}  // namespace ingot::parallel
