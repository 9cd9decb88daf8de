#include "layers/parameter.h"

#include <ATen/core/grad_mode.h>

#include "base/error.h"
#include "base/text.h"
#include "base/work_scope.h"
#include "device/virtual_device.h"
#include "kernels/initialise.h"

namespace ingot::layers {

at::Tensor part_of(const at::Tensor& whole, const tensor::Part& part) {
  auto result = whole;
  for (size_t d = 0; d < part.size(); ++d) {
    std::vector<at::Tensor> ranges;
    for (const auto& range : part[d]) ranges.push_back(result.narrow(static_cast<int64_t>(d), range.begin, range.size()));
    result = ranges.size() == 1 ? ranges[0] : device::cat(ranges, static_cast<int64_t>(d));
  }
  return result;
}

void Parameter::allocate_gradient() {
  if (gradient_memory) return gradient_memory->provide(*this);
  const base::WorkScope scope("gradients");
  if (!grad.defined()) grad = at::empty(value.sizes(), value.options().dtype(wide_type()).requires_grad(false));
}

at::Tensor& Parameter::gradient_buffer(bool& overwrite) {
  overwrite = !has_gradient;
  allocate_gradient();
  has_gradient = true;
  return grad;
}

void Parameter::accumulate(const at::Tensor& part) {
  bool overwrite = false;
  auto& buffer = gradient_buffer(overwrite);
  overwrite ? buffer.copy_(part) : buffer.add_(part);
}

void Parameter::collect_gradient() {
  auto& left = value.mutable_grad();
  if (!left.defined()) return;
  accumulate(left);
  left.reset();
}

Parameter& ParameterList::add(Parameter parameter) {
  if (find(parameter.name)) throw base::ModelError("the model declares the parameter {} twice", parameter.name);
  parameter.layer = parameter.last_layer = layer_;
  auto& added = *parameters_.emplace_back(std::make_unique<Parameter>(std::move(parameter)));
  by_name_.emplace(added.name, &added);
  return added;
}

Parameter* ParameterList::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Parameter& ParameterList::get(const std::string& name) const {
  if (auto* found = find(name)) return *found;
  std::vector<std::string> names;
  for (const auto& parameter : parameters_) names.push_back(parameter->name);
  throw base::ModelError("the model has no parameter {}{}", name, base::did_you_mean(name, names));
}

void ParameterList::allocate(at::ScalarType dtype, at::Device device) {
  const base::WorkScope scope("weights");
  for (auto& p : parameters_) {
    const auto own = dtype == at::kBFloat16 && p->keeps_fp32 ? at::kFloat : dtype;
    p->value = at::zeros(p->local_shape(), at::TensorOptions().dtype(own).device(device));
    p->value.set_requires_grad(p->is_trained());
  }
}

void ParameterList::initialise(uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (auto& p : parameters_) {
    if (device::is_counting(p->value)) continue;
    auto flat = p->value.detach().view(-1);
    for (const auto& region : tensor::regions_of(p->shape, p->part, 0, flat.numel())) {
      const auto values = flat.as_strided(region.box.extent, region.strides, flat.storage_offset() + region.offset);
      kernels::initialise(values, seed, {p->name, tensor::DType::fp32, p->shape}, region.box, p->initial);
    }
  }
}

void ParameterList::allocate_gradients() {
  const at::NoGradGuard no_grad;
  for (auto& p : parameters_)
    if (p->is_trained()) p->allocate_gradient();
}

void ParameterList::collect_gradients() {
  const at::NoGradGuard no_grad;
  for (auto& p : parameters_) p->collect_gradient();
}

void ParameterList::drop_gradients() {
  for (auto& p : parameters_) p->drop_gradient();
}

int64_t ParameterList::weight_elements() const {
  int64_t count = 0;
  for (const auto& p : parameters_) count += p->kind == Parameter::Kind::buffer ? 0 : p->elements();
  return count;
}

int64_t ParameterList::trained_elements() const {
  int64_t count = 0;
  for (const auto& p : parameters_) count += p->is_trained() ? p->elements() : 0;
  return count;
}

}  // namespace ingot::layers
