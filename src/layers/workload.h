// The work of a forward pass as data: which operations run in which order, between which tensors, and which of those stay
// for backward. A model describes itself with it in the words of its forward code; the cost of cost.h and the time and
// memory models of plan/ all read this one description. Plain values without torch; built by one thread, then read by any.
//
// What is saved is what the layers' and kernels' autograd functions say they save (fused kernels: CPU, fp32 and bf16).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "layers/cost.h"

namespace ingot::layers {

/// One tensor of activations, [rows, width].
struct Activation {
  int64_t rows = 0, width = 0, element_bytes = 0;
  int64_t bytes() const { return rows * width * element_bytes; }
  bool operator==(const Activation&) const = default;
};
using ActivationId = int32_t;

struct Operation {
  /// product: rows times a weight. attention: softmax attention. kernel: anything else, known to profiles by its name.
  enum class Kind { product, attention, kernel };
  Kind kind = Kind::kernel;
  std::string name;
  std::vector<ActivationId> inputs, outputs;
  std::vector<ActivationId> saved;  // of its inputs and outputs, and tensors of its own
  int64_t element_bytes = 4;        // of what it computes with

  // product: `count` products [rows, in] x [in, out]. kernel: size [rows, width] by which its time is looked up, `count` times.
  int64_t rows = 0, in = 0, out = 0, width = 0, count = 1;
  int64_t batch = 0, seq = 0, window = 0, heads = 0, kv_heads = 0, head_dim = 0;  // attention

  double flops = 0;                                               // forward, by the convention of cost.h
  double weight_bytes = 0;                                        // weights read once
  int64_t forward_scratch_bytes = 0, backward_scratch_bytes = 0;  // beside inputs, outputs and their gradients
  double scratch_moved_bytes = 0;                                 // of a kernel that works on its scratch and does it all in forward
  bool repeated_in_backward = false;                              // backward makes its output again
  bool is_inner = false;  // part of the last operation before that is not: its tensors are in that one's scratch
  bool operator==(const Operation&) const = default;
};

/// What a description depends on besides the model and its tokens.
struct Circumstances {
  bool on_gpu = false;
  double expert_load = 1;  // rows on the ranks with the busiest experts over the mean of all ranks that share experts
  bool operator==(const Circumstances&) const = default;
};

class Workload {
 public:
  Workload(int64_t batch, int64_t seq, int64_t element_bytes, Circumstances circumstances = {});

  int64_t batch() const { return batch_; }
  int64_t seq() const { return seq_; }
  int64_t tokens() const { return batch_ * seq_; }
  int64_t element_bytes() const { return element_bytes_; }
  bool on_gpu() const { return circumstances_.on_gpu; }
  double expert_load() const { return circumstances_.expert_load; }
  /// Bytes of the residual stream's elements: 4, or 8 in fp64 runs.
  int64_t wide_bytes() const { return element_bytes_ > 4 ? element_bytes_ : 4; }

  /// New tensors of the compute dtype and of the wider one; rows 0 = one per token.
  ActivationId narrow(int64_t width, int64_t rows = 0);
  ActivationId wide(int64_t width, int64_t rows = 0);
  /// int64 [rows]
  ActivationId indices(int64_t rows);

  /// The tensors that enter the block; they belong to what came before, but count as saved by whoever saves them here.
  ActivationId enter(ActivationId tensor);
  /// Operations from here on are the half of a block that selective recomputation repeats.
  void begin_feed_forward() { feed_forward_ = operations_.size(); }

  /// Products with weights [out_i, in], results side by side in `to`; `outs` defaults to the width of `to`.
  /// The input is saved. With `count` > 1 the rows are shared out evenly over as many weights (experts).
  Operation& linear(ActivationId from, ActivationId to, std::vector<int64_t> outs = {}, int64_t count = 1);
  /// qkv [tokens, (heads + 2 kv_heads) head_dim] -> out. Saves both and one number per query and head.
  Operation& attention(ActivationId qkv, ActivationId out, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window);
  /// Looked up as [rows, width]; 0 = the shape of its first output.
  Operation& kernel(std::string name, std::vector<ActivationId> inputs, std::vector<ActivationId> outputs, std::vector<ActivationId> saved,
                    int64_t rows = 0, int64_t width = 0);

  /// Any other operation.
  Operation& add(Operation op);
  /// What an operation does inside, `count` times for all tokens: products with a weight [out, in], and kernels.
  Operation& inner_linear(int64_t in, int64_t out, int64_t count);
  Operation& inner_kernel(std::string name, int64_t rows, int64_t width, int64_t count);

  const std::vector<Operation>& operations() const { return operations_; }
  const Activation& activation(ActivationId id) const { return activations_[static_cast<size_t>(id)]; }
  size_t activation_count() const { return activations_.size(); }
  const std::vector<ActivationId>& entering() const { return entering_; }
  size_t feed_forward_begin() const { return feed_forward_; }
  /// The same work on tensors of the same sizes.
  bool operator==(const Workload&) const = default;

 private:
  ActivationId make(int64_t rows, int64_t width, int64_t element_bytes);

  int64_t batch_, seq_, element_bytes_;
  Circumstances circumstances_;
  std::vector<Activation> activations_;
  std::vector<Operation> operations_;
  std::vector<ActivationId> entering_;
  size_t feed_forward_ = 0;
};

/// FLOPs and bytes of all operations; saved tensors are counted once, whoever saves them.
Cost cost_of(const Workload& workload);

}  // namespace ingot::layers
