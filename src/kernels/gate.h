// What the gate of a gated linear unit goes through. For kernels, too: nothing but the language is included.
#pragma once

namespace ingot::kernels {

/// A gated linear unit is act(gate) * up, with act(x) = x * sigmoid(x); GELU by tanh, which is x * sigmoid(2 sqrt(2 / pi)
/// (x + 0.044715 x^3)); or gpt-oss' clamped x * sigmoid(1.702 x), of min(gate, 7), times clamp(up, -7, 7) + 1.
enum class Gate { silu, gelu_tanh, clamped };

inline constexpr float kGeluScale = 1.5957691216057308f, kGeluCubic = 0.044715f;
inline constexpr float kClampedSlope = 1.702f, kClampedLimit = 7;

}  // namespace ingot::kernels
