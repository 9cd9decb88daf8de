// Dropless mixture of gated MLPs: every token goes to the expert it chose, whatever the load. Tokens are sorted by expert,
// each expert multiplies its contiguous rows, and the rows return to their places.
// Gradient convention: expert weights get theirs in Parameter::grad; experts without tokens contribute zero.
#pragma once

#include "layers/parameter.h"

namespace ingot::layers {

/// What happens to a token whose class is past the last expert (ZAYA1's skip class).
enum class SkipOutput { zero, identity };

/// x [tokens, hidden]; choice int64 [tokens * top_k] in 0..experts (experts = skip); weight [tokens * top_k] fp32.
/// Slot s belongs to token s / top_k. gate_up [experts, 2 ffn, hidden] (gate rows first), down [experts, hidden, ffn].
/// -> [tokens, hidden] in x's dtype: the sum over a token's slots of weight * expert(x). Saves x and the pre-activations.
at::Tensor experts(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& weight, Parameter& gate_up, Parameter& down,
                   int64_t top_k, SkipOutput skip);

}  // namespace ingot::layers
