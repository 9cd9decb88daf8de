#include "models/parts/block_context.h"

#include <cmath>

#include "base/error.h"

namespace ingot::models {

using layers::Parameter;

Parameter& BlockContext::matrix(const std::string& name, tensor::Shape shape, tensor::Part part, FanIn fan_in) const {
  const double width = fan_in == FanIn::grows ? config_.mup_width() : 1;
  return add({.name = name,
              .shape = std::move(shape),
              .part = std::move(part),
              .kind = Parameter::Kind::matrix,
              .initial = tensor::Initial::normal(config_.init_std / std::sqrt(width)),
              .width = width});
}

Parameter& BlockContext::vector(const std::string& name, int64_t size, double initial, tensor::Part part) const {
  return add({.name = name,
              .shape = {size},
              .part = std::move(part),
              .kind = Parameter::Kind::vector,
              .initial = tensor::Initial::constant(initial),
              .keeps_fp32 = true});
}

Parameter& BlockContext::convolution(const std::string& name, tensor::Shape shape, tensor::Part part) const {
  auto& parameter = matrix(name, std::move(shape), std::move(part), FanIn::fixed);
  parameter.keeps_fp32 = true;
  parameter.kind = Parameter::Kind::convolution;
  return parameter;
}

tensor::Part BlockContext::cut_rows(int64_t rows, int64_t cols) const {
  if (!schedule_->shards_weights()) return {};
  return {{schedule_->share(rows)}, {{0, cols}}};
}

tensor::Part BlockContext::cut_columns(int64_t rows, int64_t cols) const {
  if (!schedule_->shards_weights()) return {};
  return {{{0, rows}}, {schedule_->share(cols)}};
}

tensor::Part BlockContext::cut_vector(int64_t size) const {
  if (!schedule_->shards_weights()) return {};
  return {{schedule_->share(size)}};
}

void BlockContext::require_causal(const char* mixer) const {
  if (config_.bidirectional)
    throw base::ConfigError("model.bidirectional = true: {} sees earlier tokens alone; softmax, latent and basic linear attention see all",
                            mixer);
  if (config_.draft_block > 0)
    throw base::ConfigError(
        "model.draft_block = {}: {} passes on what it has seen token by token; softmax, latent and CCA attention can draft",
        config_.draft_block, mixer);
}

void BlockContext::require_uncapped(const char* mixer) const {
  if (config_.score_cap > 0)
    throw base::ConfigError("model.score_cap = {}: {} has no cap of scores; set it to 0", config_.score_cap, mixer);
}

void BlockContext::require_heads() const {
  const auto& tokens = layout_.sequence;
  schedule_->require_heads(config_.heads, config_.kv_heads, config_.resolved_head_dim());
  if (tokens.is_on() && tokens.method->check_heads)
    tokens.method->check_heads(tokens.size, schedule_->local_heads(config_.heads), schedule_->local_heads(config_.kv_heads));
}

}  // namespace ingot::models
