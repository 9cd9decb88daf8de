// What the virtual devices know of an operator, looked at once. Inner header.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

#include "device/shape_rules.h"
#include "device/virtual_device.h"

namespace ingot::device {

struct OperatorFacts {
  std::string name;       // "aten::mm": overload and the underscore of in-place variants left out
  std::string full_name;  // "aten::mm.out"
  bool has_meta = false, waits = false;
  bool can_wait = false;  // its shapes can be inferred and its kernel run later
  ShapeRule rule = nullptr;
  std::vector<bool> is_written, is_out;  // by argument

  explicit OperatorFacts(const c10::OperatorHandle& op);
};

const OperatorFacts& facts_of(const c10::OperatorHandle& op);

inline bool is_ours(const at::Tensor& tensor) { return tensor.defined() && is_virtual(tensor.device()); }

/// visit(tensor) for every tensor in an argument or result.
template <class Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      if (tensor) visit(*tensor);
  }
}

}  // namespace ingot::device
