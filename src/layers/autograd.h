// The few helpers that custom autograd functions of this folder share.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "layers/parameter.h"

namespace ingot::layers {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Parameters outlive every graph that uses them, so a function may remember the address of one.
inline void remember(AutogradContext* context, const char* key, const void* object) {
  context->saved_data[key] = static_cast<int64_t>(reinterpret_cast<intptr_t>(object));
}
template <class T>
T* remembered(AutogradContext* context, const char* key) {
  return reinterpret_cast<T*>(static_cast<intptr_t>(context->saved_data[key].toInt()));
}

/// [..., n] as [rows, n] without a copy where possible.
inline at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

}  // namespace ingot::layers
