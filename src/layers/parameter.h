// A trainable (or merely stored) tensor of a model: its logical description, which part of it this rank holds, that part's
// value in the compute dtype, and its gradient in fp32 (fp64 in fp64 runs), which several microbatches may accumulate into.
//
// Gradient convention: layers that own a large weight (linear, embedding, experts, head) add their product straight into
// `grad` during backward; small tensors get theirs from autograd and `collect_gradient` moves it over. Backward passes of
// one model run on one thread at a time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device/aten.h"
#include "kernels/quantization.h"
#include "tensor/initialise.h"
#include "tensor/part.h"

namespace ingot::layers {

struct Parameter;

/// Who gives a gradient its memory, when it should come from a larger buffer at the moment it is first needed.
class GradientMemory {
 public:
  virtual ~GradientMemory() = default;
  /// Sets parameter.grad.
  virtual void provide(Parameter& parameter) = 0;
};

/// LoRA (arXiv 2106.09685): the layer computes with weight + scale * up down. None of the three: no adapter.
struct LowRankAdapter {
  Parameter* down = nullptr;  // [rank, in]
  Parameter* up = nullptr;    // [out, rank]; 0 at first
  double scale = 1;           // alpha / rank

  explicit operator bool() const { return down != nullptr; }
};

struct Parameter {
  /// matrix: [out, in] or a stack of them, what Muon takes. buffer: stored with the model, never trained by gradient.
  enum class Kind { matrix, embedding, head, convolution, vector, buffer };

  std::string name;
  tensor::Shape shape;  // of the whole tensor, whatever part of it is here
  tensor::Part part;    // what is here; no dims = all of it
  Kind kind = Kind::vector;
  tensor::Initial initial;
  /// Stays fp32 in a bf16 model: norms, scales, biases, temperatures and the router, whose rounding would flip experts.
  bool keeps_fp32 = false;
  /// Of an expert of a mixture: other ranks share it than share the rest of the model.
  bool is_expert = false;
  /// How deep in the model it is used first: -1 embedding, 0 … blocks, their number: final norm and head. Backward has its
  /// gradient complete when it has gone through this layer.
  int64_t layer = -1;
  /// Its last use in a forward pass: another layer than the first for a tied embedding, which is the head, too.
  int64_t last_layer = -1;
  /// μP: how many times wider than at the base width its input is; learning rates are divided by it (AdamW) or by its root (Muon).
  double width = 1;
  /// Of a pipeline the first and the last stage have a copy each, whose gradients are added up.
  bool is_at_both_ends = false;
  /// Stays as it was loaded: neither gradient nor state of the optimizer.
  bool is_frozen = false;
  /// What training adds to a frozen matrix; none: nothing.
  LowRankAdapter adapter;
  /// How it and what it is multiplied with are quantized in GEMMs; nothing: they are not.
  std::optional<kernels::Quantization> quantization;

  at::Tensor value;           // [local_shape()]
  at::Tensor grad;            // the same; meaningful only while has_gradient
  bool has_gradient = false;  // false: nothing was accumulated since the last step; the tensor counts as zero

  GradientMemory* gradient_memory = nullptr;  // null: memory of its own

  bool is_trained() const { return kind != Kind::buffer && !is_frozen; }
  /// Of the whole tensor, and of what is here.
  int64_t elements() const { return tensor::element_count(shape); }
  int64_t local_elements() const { return tensor::element_count(local_shape()); }
  tensor::Shape local_shape() const { return tensor::local_shape(shape, part); }
  /// Of the gradient and the optimizer's state: fp32, or fp64 for a value in fp64.
  at::ScalarType wide_type() const { return value.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

  /// Allocates the gradient buffer now rather than on first use.
  void allocate_gradient();
  /// The gradient buffer, allocated on first use. Sets `overwrite` when what it holds is stale: the caller must then write
  /// every element rather than add.
  at::Tensor& gradient_buffer(bool& overwrite);
  /// Adds `part` (any float dtype).
  void accumulate(const at::Tensor& part);
  /// Moves what autograd left on the leaf into `grad`.
  void collect_gradient();
  /// Forgets the gradient, keeps its memory for the next step.
  void drop_gradient() { has_gradient = false; }
};

/// Of a whole tensor what `part` names; a view where that is possible.
at::Tensor part_of(const at::Tensor& whole, const tensor::Part& part);

class ParameterList {
 public:
  /// Parameters added from now on belong to this layer.
  void begin_layer(int64_t layer) { layer_ = layer; }
  Parameter& add(Parameter parameter);
  Parameter& get(const std::string& name) const;  // throws ModelError with the nearest name
  Parameter* find(const std::string& name) const;
  const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }

  /// Allocates every value on `device`: `dtype` for those that do not keep fp32.
  void allocate(at::ScalarType dtype, at::Device device);
  /// Fills every value from (seed, name, index).
  void initialise(uint64_t seed);
  void allocate_gradients();
  void collect_gradients();
  void drop_gradients();

  /// Elements of whole tensors: of all but buffers, and of those the trained ones.
  int64_t weight_elements() const;
  int64_t trained_elements() const;

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::unordered_map<std::string_view, Parameter*> by_name_;  // names are the parameters' own
  int64_t layer_ = -1;
};

}  // namespace ingot::layers
