// Replays the allocations of one part of a pass - the embedding, a block, the head - to find how much memory is live and was
// at most. A tensor lives while a later operation reads it or an autograd function saved it; a gradient until the operation
// that made its tensor has used it.
#pragma once

#include <cstdint>
#include <vector>

#include "layers/workload.h"
#include "models/model.h"

namespace ingot::plan {

class Meter {
 public:
  void take(int64_t bytes);
  void give(int64_t bytes) { live_bytes_ -= bytes; }
  /// Something of this size exists for a moment.
  void touch(int64_t bytes);
  int64_t live_bytes() const { return live_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  int64_t live_bytes_ = 0, peak_bytes_ = 0;
};

/// `work` and `meter` must outlive it. What enters counts as allocated here if it is kept, so that every tensor between two
/// parts is counted once, by the part that reads it.
class Replay {
 public:
  Replay(const layers::Workload& work, Meter& meter, bool widens_products);

  /// What is live afterwards is what the part keeps for its backward pass.
  void forward(models::Recompute recompute);
  void backward(models::Recompute recompute);
  /// Forward without gradients; nothing stays.
  void inference();

 private:
  void run_forward(size_t begin, size_t end, bool keep);
  void run_backward(size_t begin, size_t end);
  void hold(layers::ActivationId id);
  void release(layers::ActivationId id);
  bool is_read_after(layers::ActivationId id, size_t operation) const;
  int64_t product_scratch_bytes(const layers::Operation& op) const;
  int64_t widening_bytes(size_t operation) const;
  std::vector<layers::ActivationId> read_from_before(size_t begin) const;

  const layers::Workload& work_;
  Meter& meter_;
  bool widens_products_;
  std::vector<bool> live_, has_gradient_;
  std::vector<int> saves_;  // how many operations, or recomputations, saved each tensor
};

}  // namespace ingot::plan
