#include "parallel/tensor_sequence/packed_weights.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

namespace ingot::parallel {

using layers::Parameter;

PackedWeights::PackedWeights(std::vector<Parameter*> own) : own_(std::move(own)) {
  for (const auto* weight : own_) {
    bytes_ += static_cast<int64_t>(weight->value.nbytes());
    elements_ += weight->value.numel();
  }
}

// Wide elements first: then each weight lies where its elements may lie, without gaps.
std::vector<size_t> PackedWeights::order() const {
  std::vector<size_t> order(own_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return own_[a]->value.itemsize() > own_[b]->value.itemsize(); });
  return order;
}

at::Tensor PackedWeights::empty_message() const {
  return at::empty({bytes_}, own_[0]->value.options().dtype(at::kByte).requires_grad(false));
}

at::Tensor PackedWeights::empty_gradients() const {
  return at::empty({elements_}, own_[0]->value.options().dtype(own_[0]->wide_type()).requires_grad(false));
}

at::Tensor PackedWeights::pack() const {
  const at::NoGradGuard no_grad;
  auto message = empty_message();
  int64_t at = 0;
  for (const size_t i : order()) {
    const auto& value = own_[i]->value;
    const auto bytes = static_cast<int64_t>(value.nbytes());
    message.narrow(0, at, bytes).view(value.scalar_type()).copy_(value.detach().reshape({-1}));
    at += bytes;
  }
  return message;
}

std::vector<Parameter> PackedWeights::view(const at::Tensor& message, const std::vector<tensor::Shape>& shapes,
                                           const at::Tensor& gradients) const {
  const at::NoGradGuard no_grad;
  std::vector<Parameter> viewed(own_.size());
  int64_t at = 0, element = 0;
  for (const size_t i : order()) {
    const auto& own = *own_[i];
    const auto shape = shapes.empty() ? own.value.sizes().vec() : shapes[i];
    const int64_t count = tensor::element_count(shape), bytes = count * own.value.itemsize();
    auto& parameter = viewed[i];
    parameter.name = own.name;
    parameter.shape = shape;
    parameter.kind = own.kind;
    parameter.keeps_fp32 = own.keeps_fp32;
    parameter.value = message.narrow(0, at, bytes).view(own.value.scalar_type()).view(shape).detach();
    if (gradients.defined()) {
      parameter.value.set_requires_grad(true);
      parameter.grad = gradients.narrow(0, element, count).view(shape);
    }
    at += bytes;
    element += count;
  }
  return viewed;
}

void PackedWeights::finish(std::vector<Parameter>& viewed) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : viewed) {
    parameter.collect_gradient();
    if (!parameter.has_gradient) parameter.grad.zero_();
  }
}

void PackedWeights::accumulate(const at::Tensor& gradients) const {
  const at::NoGradGuard no_grad;
  int64_t element = 0;
  for (const size_t i : order()) {
    auto& own = *own_[i];
    own.accumulate(gradients.narrow(0, element, own.value.numel()).view(own.value.sizes()));
    element += own.value.numel();
  }
}

}  // namespace ingot::parallel
