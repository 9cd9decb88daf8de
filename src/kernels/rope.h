// Rotary position embedding in the half-split ("NeoX") layout: channel i is paired with channel i + rotated/2 of the first
// `rotated` channels of a head; the rest passes through. Differentiable.
#pragma once

#include <tuple>

#include "device/aten.h"

namespace ingot::kernels {

/// Cosines and sines, fp32 (fp64 for fp64), each [batch or 1, seq, rotated / 2].
struct RotaryTable {
  at::Tensor cosine, sine;
};

/// x [batch, seq, heads, head_dim] rotated by its positions.
at::Tensor rotate(const at::Tensor& x, const RotaryTable& table);

/// Takes a packed projection [batch, seq, (heads + 2 kv_heads) * head_dim] apart into q, k (both rotated) and v,
/// each [batch, seq, its heads, head_dim].
std::tuple<at::Tensor, at::Tensor, at::Tensor> split_and_rotate(const at::Tensor& packed, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                                                const RotaryTable& table);

}  // namespace ingot::kernels
