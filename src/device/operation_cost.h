// What an ATen operation costs, read off its arguments. Inner header.
#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>

namespace ingot::device {

/// FLOPs of matmuls (two per multiply-add); 0 for all else, which memory bounds. `name` without overload.
double flops_of(std::string_view name, at::ArrayRef<c10::IValue> arguments);
/// Whether the host waits for the device in this operation on CUDA: its result's shape depends on the data.
bool waits_for_device(std::string_view name, std::string_view overload);

}  // namespace ingot::device
