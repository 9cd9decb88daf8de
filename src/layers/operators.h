// The operators of kernels/ and of this folder: layers that are measured as a whole because nobody calls their parts alone.
#pragma once

#include <vector>

#include "kernels/operator.h"

namespace ingot::layers {

/// Of this folder alone.
const std::vector<kernels::Operator>& layer_operators();
/// With those of kernels/.
const std::vector<kernels::Operator>& operators();

}  // namespace ingot::layers
