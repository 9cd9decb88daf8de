// What the parts of the CPU linear-attention kernels that are compiled per instruction set (linear_attention_forward.cpp and
// _backward for gates per head, _channels for gates per channel, _delta for the delta rule, _kda for both) and their ATen side
// (linear_attention.cpp) share: the problem and the tables of functions. Includes no ATen, see isa.h. Strides and sizes count
// elements.
//
// A sequence is cut into chunks of tokens, whose scores are computed; segments of kLinearSegment chunks, whose first state the
// forward pass keeps; and, where there are few heads, parts of several segments that are worked on at once.
#pragma once

#include <cstdint>

#include "kernels/cpu/attention_tiles.h"

#define INGOT_INLINED [[gnu::always_inline]]  // no copy is emitted that could be of the wrong instruction set

namespace ingot::kernels::cpu {

inline constexpr int64_t kLinearChunk = 64;          // whole panels; measured against 48 and 96 (the states' share against the scores')
inline constexpr int64_t kLinearChannelsChunk = 24;  // with a gate per channel, where every pair of tokens costs vectors of channels
inline constexpr int64_t kLinearSegment = 16;        // chunks
inline constexpr int64_t kLinearLargestDim = 1024;   // of keys and values

struct TokenRows {  // [batch, seq, heads, dim] of float or bf16, dim contiguous
  void* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
};

struct LinearAttentionProblem {
  int64_t batch, seq, heads, key_dim, value_dim;
  bool is_bf16;
  TokenRows q, k, v, out, grad_out, grad_q, grad_k, grad_v;
  const float* gate;                          // logarithms [batch, heads, seq]; null: nothing decays
  bool same_gates;                            // of a head, for all its tokens
  TokenRows channel_gate, grad_channel_gate;  // logarithms, one per channel of keys, in fp32
  const bool* is_start;                       // [batch, seq], only for gates per channel (else it is in the gates); null: no token is
  const float* beta;                          // [batch, heads, seq]
  int64_t chunk;                              // tokens
  int64_t parts;

  float* states;        // [batch, heads, segments, key_dim, value_dim], in front of each segment
  float* final_state;   // [batch, heads, key_dim, value_dim]
  float* grad_states;   // [batch, heads, parts, key_dim, value_dim], behind each part
  float* grad_initial;  // [batch, heads, key_dim, value_dim]
  float* grad_gate;     // as gate; null: not asked for
  float* grad_beta;     // as beta
  float* made;          // [batch, heads, parts, key_dim, value_dim]: what each part makes of nothing; null: into states, grad_states

  INGOT_INLINED int64_t pairs() const { return batch * heads; }
  INGOT_INLINED int64_t chunks() const { return (seq + chunk - 1) / chunk; }
  INGOT_INLINED int64_t segments() const { return (chunks() + kLinearSegment - 1) / kLinearSegment; }
  INGOT_INLINED int64_t first_segment(int64_t part) const { return segments() * part / parts; }
  INGOT_INLINED int64_t first_chunk(int64_t segment) const {
    const int64_t first = segment * kLinearSegment;
    return first < chunks() ? first : chunks();
  }
  INGOT_INLINED int64_t state_size() const { return key_dim * value_dim; }
  INGOT_INLINED float* state(int64_t pair, int64_t segment) const { return states + (pair * segments() + segment) * state_size(); }
  INGOT_INLINED float* grad_state(int64_t pair, int64_t part) const { return grad_states + (pair * parts + part) * state_size(); }
  INGOT_INLINED float* made_by(int64_t task) const { return made + task * state_size(); }
};

struct LinearAttentionKernel {
  int64_t chunk;                                      // what the problem's must be
  int64_t (*scratch)(const LinearAttentionProblem&);  // floats for any of the tasks
  // Tasks are in [0, pairs * parts). For the delta rules parts is 1, and there are only the passes forward and backward.
  // What a part makes of a state of 0, into `made` or else the state in front of the next part.
  void (*part_state)(const LinearAttentionProblem&, int64_t task, float* scratch);
  // Outputs of one part, from the state in front of it.
  void (*forward)(const LinearAttentionProblem&, int64_t task, float* scratch);
  // Adds to the outputs of one part what the state in front of it gives them.
  void (*add_of_state)(const LinearAttentionProblem&, int64_t task, float* scratch);
  // The gradient that a part's outputs send to the state in front of it, into `made` or else that behind the part before.
  void (*part_gradient)(const LinearAttentionProblem&, int64_t task, float* scratch);
  // All gradients of one part, from that of the state behind it.
  void (*backward)(const LinearAttentionProblem&, int64_t task, float* scratch);
};

struct LinearAttentionTiles {
  LinearAttentionKernel heads, channels, delta, kda;
};

namespace portable {
extern const LinearAttentionTiles linear_attention_tiles;
}
namespace avx2 {
extern const LinearAttentionTiles linear_attention_tiles;
}
namespace avx512 {
extern const LinearAttentionTiles linear_attention_tiles;
}

}  // namespace ingot::kernels::cpu

#undef INGOT_INLINED
