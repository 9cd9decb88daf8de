// What the parts of a model's blocks share: its settings, what of it this rank holds, how parameters are declared, and the schedule by
// which layers run over ranks. Owned by the model, which outlives its parts.
#pragma once

#include <string>

#include "layers/parameter.h"
#include "layers/sequences.h"
#include "models/config.h"
#include "models/forward_context.h"
#include "parallel/layer_schedule.h"
#include "parallel/layout.h"

namespace ingot::models {

class BlockContext {
 public:
  BlockContext(const ModelConfig& config, const parallel::Layout& layout, layers::ParameterList& parameters)
      : config_(config), layout_(layout), parameters_(parameters), schedule_(parallel::make_schedule(layout)) {}

  const ModelConfig& config() const { return config_; }
  const parallel::Layout& layout() const { return layout_; }
  const parallel::LayerSchedule& schedule() const { return *schedule_; }
  at::ScalarType dtype() const { return dtype_; }  // of the computation
  void set_dtype(at::ScalarType dtype) { dtype_ = dtype; }
  const RoutingReplay& routing_replay() const { return routing_replay_; }
  void set_routing_replay(RoutingReplay replay) { routing_replay_ = std::move(replay); }

  // Declaring parameters; `name` is the full name, Hugging Face's where there is one.
  layers::Parameter& add(layers::Parameter parameter) const { return parameters_.add(std::move(parameter)); }
  /// What a matrix reads: something as wide as the stream, heads or an MLP, which μP takes to grow together, or of a width of its own.
  enum class FanIn { grows, fixed };
  layers::Parameter& matrix(const std::string& name, tensor::Shape shape, tensor::Part part = {}, FanIn fan_in = FanIn::grows) const;
  layers::Parameter& vector(const std::string& name, int64_t size, double initial, tensor::Part part = {}) const;
  layers::Parameter& convolution(const std::string& name, tensor::Shape shape, tensor::Part part) const;
  /// This rank's part of a matrix whose rows (outputs) or columns (inputs) the schedule shards; all of it on one rank.
  tensor::Part cut_rows(int64_t rows, int64_t cols) const;
  tensor::Part cut_columns(int64_t rows, int64_t cols) const;
  tensor::Part cut_vector(int64_t size) const;
  /// Throws ConfigError when the ranks cannot share the heads of attention out, by weights or by tokens.
  void require_heads() const;
  /// Of a mixer whose tokens only see what is before them. Throws ConfigError for encoders and drafts.
  void require_causal(const char* mixer) const;
  /// ConfigError where model.score_cap is set.
  void require_uncapped(const char* mixer) const;

 private:
  const ModelConfig& config_;
  const parallel::Layout& layout_;
  layers::ParameterList& parameters_;
  std::unique_ptr<parallel::LayerSchedule> schedule_;
  at::ScalarType dtype_ = at::kFloat;
  RoutingReplay routing_replay_;
};

}  // namespace ingot::models
