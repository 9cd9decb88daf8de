// Every operator of libtorch that has no kernel of its own on the virtual devices. Inner header.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace ingot::device {

/// Counting: the Meta kernel or a shape rule. Emulated: the same for the shapes, and the CPU's kernel over the same memory when the current
/// stream comes to it; at once, behind what the stream has to do, where shapes cannot be inferred.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace ingot::device
