// What the gate of a gated linear unit goes through. For kernels, too: nothing but the language is included.
#pragma once

namespace ingot::kernels {

/// x * sigmoid(x), or GELU by tanh, which is x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
enum class Gate { silu, gelu_tanh };

inline constexpr float kGeluScale = 1.5957691216057308f, kGeluCubic = 0.044715f;

}  // namespace ingot::kernels
