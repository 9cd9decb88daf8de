// The fused linear-attention kernels for CPUs, fp32 and bf16; see kernels/linear_attention.h for the meaning of the arguments, which
// must have been checked. bf16 is widened chunk by chunk; products, decays and sums are fp32. One kernel each for gates per head
// or none, gates per channel, the delta rule, and KDA; the last two work on no fewer than a whole row at once.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/linear_attention_tiles.h"
#include "kernels/linear_attention.h"

namespace ingot::kernels::cpu {

const LinearAttentionTiles& linear_attention_tiles(Isa isa);

/// Whether the passes forward and backward take the inputs, and whether the other functions do.
bool takes_linear_attention(const LinearAttentionInputs& in);
bool takes_linear_attention_states(const LinearAttentionInputs& in);

LinearAttentionOutput linear_attention_forward(const LinearAttentionInputs& in, const at::Tensor& initial_state,
                                               const LinearAttentionTiles& tiles = linear_attention_tiles(best_isa()));
/// `saved` is what the forward pass returned: the states in front of segments, [batch, heads, segments, key_dim, value_dim].
LinearAttentionGradients linear_attention_backward(const at::Tensor& grad_out, const at::Tensor& grad_final_state,
                                                   const LinearAttentionInputs& in, const at::Tensor& saved,
                                                   const LinearAttentionTiles& tiles = linear_attention_tiles(best_isa()));

/// LinearAttentionMap::added, and linear_attention_state_gradient().
at::Tensor linear_attention_state(const LinearAttentionInputs& in, const LinearAttentionTiles& tiles = linear_attention_tiles(best_isa()));
at::Tensor linear_attention_state_gradient(const at::Tensor& grad_out, const LinearAttentionInputs& in,
                                           const LinearAttentionTiles& tiles = linear_attention_tiles(best_isa()));
void add_linear_attention_of_state(const at::Tensor& out, const LinearAttentionInputs& in, const at::Tensor& initial_state,
                                   const LinearAttentionTiles& tiles = linear_attention_tiles(best_isa()));

}  // namespace ingot::kernels::cpu
