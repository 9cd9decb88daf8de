// The few tokens before a rank's own that convolutions look at.
#pragma once

#include "parallel/context/axis.h"

namespace ingot::parallel {

/// x [batch, own tokens, width] -> [batch * chunks, halo + chunk length, width]: each chunk behind the last `halo` tokens of the one
/// before it (zeros before the first), which come from the rank that holds it. Backward, their gradients go back there.
/// A rank sends and receives at most 2 messages of batch * halo * width elements each way. Chunks hold at least `halo` tokens.
at::Tensor with_halo(const at::Tensor& x, const ContextAxis& axis, int64_t halo);

}  // namespace ingot::parallel
