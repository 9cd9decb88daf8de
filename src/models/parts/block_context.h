// What the parts of a model's blocks share: its settings, what of it this rank holds, how parameters are declared, and the way into and
// out of a layer whose weights are cut. Owned by the model, which outlives its parts.
#pragma once

#include <string>

#include "layers/parameter.h"
#include "layers/sequences.h"
#include "models/config.h"
#include "models/forward_context.h"
#include "models/layout.h"

namespace ingot::models {

class BlockContext {
 public:
  BlockContext(const ModelConfig& config, const Layout& layout, layers::ParameterList& parameters)
      : config_(config), layout_(layout), parameters_(parameters) {}

  const ModelConfig& config() const { return config_; }
  const Layout& layout() const { return layout_; }
  at::ScalarType dtype() const { return dtype_; }  // of the computation
  void set_dtype(at::ScalarType dtype) { dtype_ = dtype; }
  const RoutingReplay& routing_replay() const { return routing_replay_; }
  void set_routing_replay(RoutingReplay replay) { routing_replay_ = std::move(replay); }

  // Declaring parameters; `name` is the full name, Hugging Face's where there is one.
  layers::Parameter& add(layers::Parameter parameter) const { return parameters_.add(std::move(parameter)); }
  layers::Parameter& matrix(const std::string& name, tensor::Shape shape, tensor::Part part = {}) const;
  layers::Parameter& vector(const std::string& name, int64_t size, double initial, tensor::Part part = {}) const;
  layers::Parameter& convolution(const std::string& name, tensor::Shape shape, tensor::Part part) const;
  /// This rank's part of a matrix whose rows (outputs) or columns (inputs) the tensor or tensor_sequence axis cuts; all of it without.
  tensor::Part cut_rows(int64_t rows, int64_t cols) const;
  tensor::Part cut_columns(int64_t rows, int64_t cols) const;
  tensor::Part cut_vector(int64_t size) const;
  /// Throws ConfigError when the axis that cuts weights does not divide `value`, the setting model.<name>.
  void require_shares(const char* name, int64_t value) const;
  /// The same for heads, which the sequence axis may share out too.
  void require_heads() const;

  /// Whether this pass goes through the folded schedules of a tensor_sequence axis: all do but the new tokens of a generation, for which
  /// the weights stay where they are (layers/tensor_sequence/decoding.h).
  bool folds(const layers::Sequences& sequences) const { return layout_.tensor_sequence.is_on() && sequences.axis().is_on(); }
  /// Tokens as they are between layers -> all of them, and back (layers/tensor_axis.h).
  at::Tensor enter(const at::Tensor& x, const layers::Sequences& sequences) const {
    return layout_.tensor.enter(x, sequences.batch(), sequences.seq());
  }
  at::Tensor leave(const at::Tensor& partial) const;

 private:
  const ModelConfig& config_;
  const Layout& layout_;
  layers::ParameterList& parameters_;
  at::ScalarType dtype_ = at::kFloat;
  RoutingReplay routing_replay_;
};

}  // namespace ingot::models
