// Linear attention: instead of keys and values each head keeps one state S [key_dim, value_dim], which every token decays, adds to
// and reads (LASP-2, arXiv 2502.07563, section 2; per token, S starting as the initial state):
//
//   S = 0 at the first token of a document
//   S = exp(log_gate) S                 per head, or per head and key channel
//   S = S + k v^T                       without beta
//   S = S + k (beta (v - k^T S))^T      with beta: the delta rule
//   o = q^T S
//
//   variant               log_gate                           beta
//   basic                 -                                  -
//   retention, lightning  [heads], the same for every token  -
//   scalar gate           [batch, seq, heads]                -
//   diagonal gate         [batch, seq, heads, key_dim]       -
//   delta rule            -                                  [batch, seq, heads]
//   gated delta rule      [heads] or [batch, seq, heads]     [batch, seq, heads]
//   KDA                   [batch, seq, heads, key_dim]       [batch, seq, heads]   (Kimi Delta Attention, arXiv 2510.26692)
//
// Computed by chunks of tokens: time seq * (chunk * d + d^2), memory linear in the sequence. Gates are summed as logarithms
// and only sums of them (so nothing above 0) are exponentiated: no gate is too strong. States are fp32, or fp64 for fp64.
//
// For sequences spread over ranks: what a run of tokens does to a state is affine (linear_attention_map), and so is what a state
// adds to the outputs; so the parts of a sequence can be computed before the states at their borders are known.
//
// Nothing here records gradients, unless it says so: callers are autograd functions, or inference. Any thread may call; results are
// bit-equal from run to run and do not depend on the number of threads. On a CPU fp32 and bf16 take fused kernels
// (cpu/linear_attention.h), keys and values up to 1,024 wide; on a GPU the passes in bf16 do (gpu/linear_attention.h); everything else
// takes compositions of ATen (reference/).
#pragma once

#include "device/aten.h"

namespace ingot::kernels {

struct LinearAttentionInputs {
  at::Tensor q, k;      // [batch, seq, heads, key_dim]
  at::Tensor v;         // [batch, seq, heads, value_dim]
  at::Tensor log_gate;  // see above, no element above 0; undefined: none
  at::Tensor beta;      // [batch, seq, heads]; undefined: no delta rule
  at::Tensor is_start;  // bool [batch, seq], true at the first token of each document; undefined: every row goes on with its state
};

struct LinearAttentionOutput {
  at::Tensor out;          // [batch, seq, heads, value_dim], dtype of v
  at::Tensor final_state;  // [batch, heads, key_dim, value_dim]
  at::Tensor saved;        // for backward; undefined where that needs none
};

/// `initial_state` [batch, heads, key_dim, value_dim]; undefined: 0. Throws ModelError when shapes or dtypes do not fit.
LinearAttentionOutput linear_attention_forward(const LinearAttentionInputs& in, const at::Tensor& initial_state = {});

/// States that the fused kernels of a CPU save for backward, of each row and head: one for every few thousand tokens. by_channel: of a gate
/// per head and key channel.
int64_t linear_attention_segments(int64_t seq, bool by_channel);

/// Shapes and dtypes of what they belong to; undefined for inputs that are, and for a log_gate of [heads].
struct LinearAttentionGradients {
  at::Tensor q, k, v, log_gate, beta;
  at::Tensor initial_state;
};

/// Gradients of linear_attention_forward, whose `saved` it takes, for the same inputs. `grad_final_state` undefined: 0.
LinearAttentionGradients linear_attention_backward(const at::Tensor& grad_out, const at::Tensor& grad_final_state,
                                                   const LinearAttentionInputs& in, const at::Tensor& initial_state,
                                                   const at::Tensor& saved);

/// What a run of tokens does to a state: S -> transition S + added. The transition is the diagonal matrix exp(log_decay), or
/// `matrix` with the delta rule. Documents that begin inside the run make it 0 (log_decay -inf).
struct LinearAttentionMap {
  at::Tensor added;      // [batch, heads, key_dim, value_dim]
  at::Tensor log_decay;  // [batch, heads, 1 or key_dim]; undefined with the delta rule
  at::Tensor matrix;     // [batch, heads, key_dim, key_dim]; only with the delta rule
};

/// Without computing outputs: 2 key_dim value_dim operations a token and head, for the delta rule a forward pass with value_dim + key_dim,
/// whose outputs are dropped.
LinearAttentionMap linear_attention_map(const LinearAttentionInputs& in);
/// The state behind the run.
at::Tensor apply(const LinearAttentionMap& map, const at::Tensor& state);
/// The gradient of the state in front of the run that a gradient of the state behind it makes.
at::Tensor apply_transposed(const LinearAttentionMap& map, const at::Tensor& grad_state);
/// `first`, then `second`.
LinearAttentionMap compose(const LinearAttentionMap& first, const LinearAttentionMap& second);

/// Adds to outputs that were made without an initial state, [batch, seq, heads, value_dim], what that gives them.
void add_linear_attention_of_state(const at::Tensor& out, const LinearAttentionInputs& in, const at::Tensor& initial_state);

/// The gradient of the initial state that the run's own outputs make (that of the final state being 0).
at::Tensor linear_attention_state_gradient(const at::Tensor& grad_out, const LinearAttentionInputs& in);

/// The second part of a backward pass in two, not for the delta rule. The first is linear_attention_backward without states, behind
/// a forward pass without; this adds to its `grads` what the states change, either of which may be undefined.
void add_gradients_of_states(LinearAttentionGradients& grads, const at::Tensor& grad_out, const LinearAttentionInputs& in,
                             const at::Tensor& initial_state, const at::Tensor& grad_final_state);

/// o_t = q_t times the sum of k v^T over the whole document: the basic variant without a causal mask. Recorded by autograd.
at::Tensor bidirectional_linear_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& is_start = {});

/// One token for every row, with a constant amount of memory: reads and replaces `state`, undefined before the first token.
/// seq must be 1; returns out.
at::Tensor linear_attention_step(const LinearAttentionInputs& in, at::Tensor& state);

namespace reference {

/// Token by token, in the dtype of states; recorded by autograd. In fp64 it is the oracle.
LinearAttentionOutput linear_attention_recurrence(const LinearAttentionInputs& in, const at::Tensor& initial_state);

// Chunks of `chunk` tokens (a power of two) by ATen operations: any floating dtype, any device.
inline constexpr int64_t kLinearAttentionChunk = 64;
LinearAttentionOutput linear_attention_forward(const LinearAttentionInputs& in, const at::Tensor& initial_state,
                                               int64_t chunk = kLinearAttentionChunk);
LinearAttentionGradients linear_attention_backward(const at::Tensor& grad_out, const at::Tensor& grad_final_state,
                                                   const LinearAttentionInputs& in, const at::Tensor& initial_state,
                                                   int64_t chunk = kLinearAttentionChunk);
/// With the delta rule: what linear_attention_map and linear_attention_state_gradient do.
LinearAttentionMap delta_rule_map(const LinearAttentionInputs& in, int64_t chunk = kLinearAttentionChunk);
at::Tensor delta_rule_state_gradient(const at::Tensor& grad_out, const LinearAttentionInputs& in, int64_t chunk = kLinearAttentionChunk);

}  // namespace reference
}  // namespace ingot::kernels
