// Passes of microbatches as graphs of a GPU (device/graph.h): what the host says once in some thousand launches it then says in one. For
// models whose kernels are shorter than their launches.
//
// A graph is of one shape: rows and tokens, and with documents the next power of two of their number. It is captured when passes of that
// shape have run as they are, which fills the libraries' caches. What the host remembers of a pass (which gradients and counts are there)
// is part of its shape, too, and is brought about by a replay as by the pass. A number of the host is as it was: a pass whose loss is
// scaled by another one, since the batch has another number of targets, runs as it is.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "device/graph.h"
#include "models/model.h"
#include "train/expert_counter.h"
#include "train/microbatch.h"

namespace ingot::train {

class GraphedPasses {
 public:
  /// Both must outlive it; the model has all its tokens and layers.
  GraphedPasses(models::Model& model, ExpertCounter& counter) : model_(model), counter_(counter) {}

  /// Comes before the passes of each step.
  void begin_step() { ++step_; }

  /// Forward and backward; gives the loss. Everything else that it needs must be the same in every call.
  using Pass = std::function<at::Tensor(const Microbatch&, const std::shared_ptr<layers::Sequences>&)>;
  /// The loss, which the next call may overwrite. Throws ConfigError where the pass cannot be captured.
  at::Tensor run(const Microbatch& microbatch, double scale, const Pass& pass);

  /// What passes do has changed.
  void forget() { shapes_.clear(); }
  int64_t replays() const { return replays_; }

 private:
  struct Captured;
  struct Shape;
  std::vector<int64_t> key_of(const Microbatch& microbatch, const at::Tensor& offsets) const;
  std::unique_ptr<Captured> capture(const Microbatch& microbatch, const at::Tensor& offsets, double scale, const Pass& pass);
  void replay(Captured& captured, const Microbatch& microbatch, const at::Tensor& offsets);

  models::Model& model_;
  ExpertCounter& counter_;
  std::map<std::vector<int64_t>, std::shared_ptr<Shape>> shapes_;
  int64_t replays_ = 0, step_ = 0;
};

}  // namespace ingot::train
