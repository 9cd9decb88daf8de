#include "layers/operators.h"

#include <ATen/core/grad_mode.h>

#include "layers/operators/helpers.h"

namespace ingot::layers {

std::shared_ptr<ParameterList> random_parameters(std::vector<Parameter> described, const OperatorSizes& s) {
  auto list = std::make_shared<ParameterList>();
  for (auto& p : described) list->add(std::move(p));
  list->allocate(s.dtype, s.device);
  const at::NoGradGuard no_grad;
  for (const auto& p : list->all()) p->value.copy_(s.normal(p->shape) * 0.02);
  return list;
}

const std::vector<Operator>& operators() {
  static const std::vector<Operator> all = [] {
    auto list = kernels::operators();
    list.insert(list.end(), layer_operators().begin(), layer_operators().end());
    return list;
  }();
  return all;
}

}  // namespace ingot::layers
