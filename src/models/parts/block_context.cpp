#include "models/parts/block_context.h"

#include "base/error.h"
#include "layers/sharded_attention.h"
#include "layers/tensor_sequence/folded_attention.h"

namespace ingot::models {

using layers::Parameter;

Parameter& BlockContext::matrix(const std::string& name, tensor::Shape shape, tensor::Part part) const {
  return add({.name = name,
              .shape = std::move(shape),
              .part = std::move(part),
              .kind = Parameter::Kind::matrix,
              .initial = tensor::Initial::normal(config_.init_std)});
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
  auto& parameter = matrix(name, std::move(shape), std::move(part));
  parameter.keeps_fp32 = true;
  parameter.kind = Parameter::Kind::convolution;
  return parameter;
}

tensor::Part BlockContext::cut_rows(int64_t rows, int64_t cols) const {
  if (!layout_.cuts_weights()) return {};
  return {{layout_.weight_share(rows)}, {{0, cols}}};
}

tensor::Part BlockContext::cut_columns(int64_t rows, int64_t cols) const {
  if (!layout_.cuts_weights()) return {};
  return {{{0, rows}}, {layout_.weight_share(cols)}};
}

tensor::Part BlockContext::cut_vector(int64_t size) const {
  if (!layout_.cuts_weights()) return {};
  return {{layout_.weight_share(size)}};
}

void BlockContext::require_heads() const {
  if (const auto& folded = layout_.tensor_sequence; folded.is_on())
    return layers::check_folded_heads(config_.heads, config_.kv_heads, config_.resolved_head_dim(), folded.size);
  require_shares("kv_heads", config_.kv_heads);
  layers::check_heads(layout_.sequence, config_.heads / layout_.tensor.size, config_.kv_heads / layout_.tensor.size);
}

void BlockContext::require_shares(const char* name, int64_t value) const {
  const bool is_folded = layout_.tensor_sequence.is_on();
  const int64_t ranks = is_folded ? layout_.tensor_sequence.size : layout_.tensor.size;
  if (value % ranks == 0) return;
  std::vector<int64_t> good;
  for (int64_t n = 1; n <= std::min<int64_t>(value, 64); ++n)
    if (value % n == 0) good.push_back(n);
  throw base::ConfigError("parallel.{} = {} does not divide model.{} = {}; it may be {}", is_folded ? "tensor_sequence" : "tensor", ranks,
                          name, value, fmt::join(good, ", "));
}

at::Tensor BlockContext::leave(const at::Tensor& partial) const {
  const auto& folded = layout_.tensor_sequence;
  return folded.is_on() ? layers::TensorAxis{.rank = folded.rank, .size = folded.size, .group = folded.group}.leave(partial)
                        : layout_.tensor.leave(partial);
}

}  // namespace ingot::models
