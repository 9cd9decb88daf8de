// Losses that train a model without being in the number that is shown as its loss.
#pragma once

#include "device/aten.h"

namespace ingot::layers {

/// x as it is; on the way back `loss` (0-dim) gets the gradient 1.
at::Tensor attach_loss(const at::Tensor& x, const at::Tensor& loss);

}  // namespace ingot::layers
