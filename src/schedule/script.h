// What the builders of schedules share: one rank's list while it is written, and the parts that a layer is put together from.
#pragma once

#include <functional>
#include <memory>

#include "schedule/layout.h"
#include "schedule/operation_list.h"

namespace ingot::schedule {

/// One rank's list while it is written. `layout` must outlive it.
class Script {
 public:
  Script(const Layout& layout, int rank) : layout_(layout), rank_(rank) {}

  const Layout& layout() const { return layout_; }
  const Sizes& sizes() const { return layout_.sizes; }
  int rank() const { return rank_; }
  OperationList& list() { return list_; }
  bool trains() const { return layout_.pass != Pass::forward; }
  int64_t e() const { return sizes().element_bytes(); }
  int64_t wide() const { return sizes().wide_bytes(); }
  /// With the same tokens, and with the same part of the weights: neighbours first.
  Group tensor_group() const;
  Group sequence_group() const;
  int sequence_rank() const { return rank_ / layout_.tensor_size(); }

  using Buffers = std::vector<Buffer>;
  /// Return the buffer that the work makes, of `bytes`.
  Buffer compute(const char* name, Work work, const Buffers& reads, int64_t bytes);
  void compute_into(const char* name, Work work, const Buffers& reads, Buffer into);
  /// rows x in times in x out; `bytes` of the result.
  Buffer product(const char* name, int64_t rows, int64_t in, int64_t out, const Buffers& reads, int64_t bytes) {
    return compute(name, Gemm{rows, out, in}, reads, bytes);
  }
  void product_into(const char* name, int64_t rows, int64_t in, int64_t out, const Buffers& reads, Buffer into) {
    compute_into(name, Gemm{rows, out, in}, reads, into);
  }

  /// `bytes`: of the tensor that is whole, of elements as wide as activations or as `element_bytes`. Does nothing in a group of one.
  void collective(const char* name, Kind kind, const Group& group, int64_t bytes, const Buffers& reads, const Buffers& writes,
                  int root = -1, int64_t element_bytes = 0);
  Buffer gather(const char* name, const Group& group, int64_t whole_bytes, Buffer own);
  Buffer scatter_sum(const char* name, const Group& group, int64_t whole_bytes, Buffer whole);
  void send(const char* name, int to, int64_t bytes, Buffer from, bool is_launched = false);
  Buffer receive(const char* name, int from, int64_t bytes, bool is_launched = false);
  /// To the next rank of a group, and one like it from the rank before.
  Buffer rotate(const char* name, const Group& group, int64_t bytes, Buffer leaving);

  Buffer resident(int64_t bytes) { return list_.resident(bytes); }
  Buffer buffer(int64_t bytes) { return list_.buffer(bytes); }

 private:
  const Layout& layout_;
  int rank_;
  OperationList list_;
};

/// Called by a part once its own messages are under way: time to start others.
using Meanwhile = std::function<void()>;

/// Attention with its projections, or a gated MLP, on one rank. What forward keeps for backward is the part's own.
class Part {
 public:
  virtual ~Part() = default;
  /// Starts to bring weights here that are not.
  virtual void prefetch() {}
  virtual Buffer forward(Buffer x, const Meanwhile& meanwhile) = 0;
  virtual Buffer backward(Buffer grad_out, const Meanwhile& meanwhile) = 0;
};

std::unique_ptr<Part> sharded_attention(Script& script);
std::unique_ptr<Part> sharded_mlp(Script& script);
std::unique_ptr<Part> folded_attention(Script& script);
std::unique_ptr<Part> folded_mlp(Script& script);

}  // namespace ingot::schedule
