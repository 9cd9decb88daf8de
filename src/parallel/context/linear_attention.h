// Linear attention of sequences whose tokens are spread over the ranks of a context axis, in contiguous order: what a rank's tokens do
// to the state is an affine map, S -> A S + E (kernels/linear_attention.h), and each rank needs the composition of the maps before it.
// The same as on one rank, up to the order of additions.
//
//   lasp2   one all-gather of E, and of A where tokens decide about it, while each rank works on its own tokens; then every rank folds the
//           maps before it (arXiv 2502.07563, with decays as its paper does not have them). Backward the same with the gradients of states:
//           while they travel each rank does all of its pass but what the state behind its tokens gives dk, dv and the gates.
//   lasp1   a chain: each rank waits for the state, applies its map and sends it on before it works on its tokens (LASP)
//   zeco    the chain in blocks of columns, which go through all ranks while these work on their tokens (All-Scan, arXiv 2507.01004)
//
// Elements (of states: fp32 or fp64) that a rank receives per pass, for p ranks, batch b, h heads, states dk x dv; `gates` = 0 for none or
// a constant decay, 1 for a gate per head, dk for one per channel, dk^2 with the delta rule, whatever its gates:
//   lasp2         (p - 1) b h (dk dv + gates) forward, (p - 1) b h dk dv backward; 1 collective each
//   lasp1, zeco   b h dk dv each way, nothing on the first (forward) or last rank (backward); 1 message, or one a block
// None depends on the length. Under the delta rule all hangs on the states, and nothing goes on while they travel. The transitions of the
// forward pass are kept for backward. bf16 is upcast where parts of a result are added, so that it is rounded once. Nothing is divided by a
// gate, and decays are added up as logarithms.
#pragma once

#include "device/aten.h"
#include "kernels/linear_attention.h"
#include "layers/sequences.h"
#include "parallel/context/axis.h"

namespace ingot::parallel {

/// q, k [batch, own tokens, heads, key_dim], v alike with value_dim, gates and beta as kernels::LinearAttentionInputs has them
/// -> [batch, own tokens, heads, value_dim] in the dtype of v. is_start is taken from `sequences`. Differentiable.
/// Throws ConfigError for a zigzag order.
at::Tensor sharded_linear_attention(const kernels::LinearAttentionInputs& in, const layers::Sequences& sequences, const ContextAxis& axis);

/// Every token sees all tokens (the basic variant without a causal mask): one all-gather of k v^T forward, one of its gradient backward.
/// Throws ConfigError for packed documents.
at::Tensor sharded_bidirectional_linear_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                  const layers::Sequences& sequences, const ContextAxis& axis);

}  // namespace ingot::parallel
