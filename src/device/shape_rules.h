// Shapes of operations whose Meta kernel libtorch has in Python only. Inner header.
#pragma once

#include <ATen/core/stack.h>

#include <string>

namespace ingot::device {

/// Takes the arguments off the stack and leaves the results: tensors of a counting device.
using ShapeRule = void (*)(torch::jit::Stack&);

/// Of an operation with its overload ("aten::where.self"); null where there is none.
ShapeRule shape_rule(const std::string& name);

}  // namespace ingot::device
