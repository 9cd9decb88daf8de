// Linear attention on a GPU as its kernels (linear_attention_launch.h) and their ATen side (linear_attention.cpp) share it. Includes no
// ATen and nothing of a vendor's. Strides and sizes count elements.
#pragma once

#include <cstdint>

namespace ingot::kernels::gpu {

constexpr int64_t kLinearAttentionChunk = 64;  // tokens
constexpr int64_t kStateTile = 64;             // rows and columns of a state that a block has
constexpr int64_t kStateTileParts = 4;         // of a tile of a state, over each of which a sum of its own is made

/// [batch, seq, heads, dim], dim contiguous; of bf16, addresses and strides of whole 16 bytes, if nothing else is said.
struct HeadRows {
  void* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0;
};

/// A row's sequence is cut into chunks, and its chunks into parts, through which states go at once. Pairs are of batch and head.
struct LinearAttentionProblem {
  int64_t batch, seq, heads, key_dim, value_dim;  // dims: multiples of 16
  int64_t pairs, chunks, key_tiles, value_tiles;  // by cut()
  int64_t parts;                                  // at most as many as chunks
  HeadRows q, k, v, out, grad_out, grad_q, grad_k, grad_v;
  const float* gate;                        // logarithms [pairs, seq]; null: nothing decays, or by channel
  HeadRows channel_gate;                    // logarithms, like k but fp32; data null: none per channel
  const float *initial_state, *grad_final;  // [pairs, key_dim, value_dim]; null: 0
  float *final_state, *grad_initial;        // the same, to be written; final_state null: backward
  float* saved;                             // [pairs, parts, key_dim, value_dim]: states in front of parts; backward reads them
  const float* beta;                        // [pairs, seq]; null: no delta rule
  float* grad_gate;                         // as gate; null: not asked for
  float* grad_beta;                         // as beta
  HeadRows grad_channel_gate;               // as channel_gate

  // Work areas. made, decays: null with one part.
  float* made;                     // [pairs, parts, key_dim, value_dim]: what a part makes of a state of 0, or of a gradient of 0
  float* decays;                   // [pairs, parts, key_dim with a gate per channel]: what is left of a state behind a part
  uint16_t *states, *grad_states;  // bf16 [pairs, chunks, key_dim, value_dim]: in front of each chunk, the gradient behind it
  uint16_t *scores, *grad_scores;  // bf16 [pairs, chunks, chunk, chunk]: decayed and masked, and the gradient of q k^T
  // For grad_gate: what it is of scores [pairs, seq]; what tokens read of states [read_tiles, pairs, seq], key_tiles of queries and as many
  // of the delta rule's keys; what they write into them [key_tiles, pairs, seq]; what states keep [pairs, chunks, kept_parts].
  float *gate_of_scores, *reads, *writes, *kept;
  int64_t read_tiles, kept_parts;

  // With a gate per channel. whole: what is left of a state behind a chunk [pairs, chunks, key_dim]; kept: [kept_parts, pairs, chunks,
  // key_dim], of tiles of values, or of strips with the delta rule.
  HeadRows decayed_q, decayed_k;  // from the chunk's start, and to its end
  HeadRows k_from_start;          // with the delta rule
  float* whole;

  // With the delta rule (linear_attention_delta.h). bf16 [pairs, chunks, chunk, chunk]: T; backward P and the gradient of k k^T.
  uint16_t *inverse, *products, *grad_products;
  HeadRows solved_k;                          // W, like k
  HeadRows residuals, written, grad_written;  // R, U and dU, like v

  /// Fills in what follows from the sizes.
  void cut() {
    pairs = batch * heads;
    chunks = (seq + kLinearAttentionChunk - 1) / kLinearAttentionChunk;
    key_tiles = (key_dim + kStateTile - 1) / kStateTile;
    value_tiles = (value_dim + kStateTile - 1) / kStateTile;
  }
};

}  // namespace ingot::kernels::gpu
