// What a pass through a model in small batches consists of: steps that all workers run together, one after another. Between two steps they
// wait for one another. Nothing is allocated from token to token, no graph is made, and activations are fp32.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "device/aten.h"
#include "models/decode/team.h"
#include "models/forward_context.h"

namespace ingot::models::decode {

/// Places that steps share; each is as large as the largest that was asked for.
enum class Slot {
  residual,
  normed,
  branch,
  inverse,  // of the stream: [rows, hidden]; 1 / rms of rows
  packed,
  queries,
  keys,
  values,
  attended,  // of attention
  wide,
  partials,
  log_sum_exp,
  taps,  //
  gate_up,
  activated,  // of feed-forwards
  router_state,
  router_a,
  router_b,
  logits,  // of routers
  count
};

class Workspace {
 public:
  /// Aligned to 64 bytes; what it held may be lost when it grows.
  float* floats(Slot slot, int64_t count) {
    auto& tensor = slots_[static_cast<size_t>(slot)];
    if (!tensor.defined() || tensor.numel() < count) tensor = at::empty({count + count / 2}, at::kFloat);
    return tensor.mutable_data_ptr<float>();
  }
  float* floats(Slot slot) const { return slots_[static_cast<size_t>(slot)].mutable_data_ptr<float>(); }

 private:
  std::array<at::Tensor, static_cast<size_t>(Slot::count)> slots_;
};

struct Worker {
  int index = 0, count = 1;
  Team* team = nullptr;
  void wait_for_all() const { team->wait_for_all(); }
};

/// A token of the pass, and where it stands.
struct Token {
  int64_t sequence = 0, position = 0;
  int64_t first = 0;   // row of the pass' first token of its sequence
  int64_t length = 0;  // tokens that the sequence has with those of this pass
};

struct Pass {
  int64_t number = 0;  // of the passes so far
  int64_t hidden = 0;
  std::vector<Token> tokens;
  std::vector<std::vector<LayerCache>*> caches;  // by sequence, by layer
  ForwardContext* context = nullptr;             // of steps that run as everywhere else
  Workspace work;
  std::vector<std::vector<int16_t>> words;      // of each worker: rows of x in 16 or 8 bits
  std::vector<std::vector<float>> word_scales;  // and what goes with them

  int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
  float* residual() const { return work.floats(Slot::residual); }
  float* normed() const { return work.floats(Slot::normed); }
  float* branch() const { return work.floats(Slot::branch); }
};

class Step {
 public:
  Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  virtual ~Step() = default;

  /// On the pass' own thread, before any step runs: room in caches and in the workspace. May throw.
  virtual void prepare(Pass& /*pass*/) {}
  virtual void run(Pass& pass, const Worker& worker) = 0;
  /// Run by the pass' own thread alone, and may throw.
  virtual bool is_alone() const { return false; }
};

/// Rows [begin, end) of `count` that are a worker's.
inline tensor::Range share_of_rows(int64_t count, const Worker& worker) {
  return {count * worker.index / worker.count, count * (worker.index + 1) / worker.count};
}

}  // namespace ingot::models::decode
