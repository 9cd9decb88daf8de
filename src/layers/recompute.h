// Activation recomputation: run a piece of the model without keeping what its backward needs, and run it again when the
// gradient arrives. The second run repeats the first bit for bit, so losses do not depend on it.
// Gradient convention: that of the layers in the piece; weights get theirs during the second run, inputs theirs from autograd.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "device/aten.h"
#include "layers/activation_offload.h"

namespace ingot::layers {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Calls `function` on `inputs`, some of which may be undefined; all outputs must be defined. Keeps only the inputs; where `offload` is
/// given, in the host's memory.
/// `function` must be pure but for gradients of the parameters that it uses, and must outlive the graph by value.
std::vector<at::Tensor> recompute(TensorFunction function, const std::vector<at::Tensor>& inputs,
                                  const std::shared_ptr<ActivationOffload>& offload = nullptr);

/// True while a piece is being run for the second time: counters of tokens per expert must not count again.
bool is_recomputing();

}  // namespace ingot::layers
