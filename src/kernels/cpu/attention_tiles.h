// What the parts of the CPU attention kernels that are compiled per instruction set and their ATen side (attention.cpp) share: the problem,
// the layout of work areas, the table of functions. There are two kernels: on vectors of floats (attention_pack.cpp, _forward, _backward,
// _decode) and, for bf16, on bf16 matmuls (attention_pairs_pack.cpp, _forward, _backward). Includes no ATen, see isa.h. Strides and
// sizes count elements.
#pragma once

#include <cstdint>

#include "kernels/page_tokens.h"

#define INGOT_INLINED [[gnu::always_inline]]  // no copy is emitted that could be of the wrong instruction set

namespace ingot::kernels::cpu {

inline constexpr int64_t kDecodeKeys = 256;  // keys of one decoding task
static_assert(kDecodeKeys % kPageTokens == 0);

struct AttentionRows {  // [batch, length, heads, head_dim] of float or bf16, head_dim contiguous
  void* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, head_stride = 0, head_dim = 0;
  void* const* pages = nullptr;  // in place of data, when decoding: each of kPageTokens rows
};

enum class AttentionPass { forward, backward, decode };

struct AttentionProblem {
  int64_t batch, q_len, k_len, heads, kv_heads;  // k_len: keys up to the last that any query sees, at least 1
  int64_t head_dim, value_dim;                   // of q and k; of v and out
  int64_t query_offset;
  const int32_t *visible_from, *visible_until;  // [batch, q_len] contiguous, or null
  float scale, cap;                             // kernels::ScoreRule
  bool is_bf16;
  AttentionRows q, k, v, out, grad_out, grad_q, grad_k, grad_v;
  float* log_sum_exp;  // [batch, heads, q_len]

  AttentionPass pass;

  // By AttentionTiles::lay_out.
  int64_t key_block, query_block;         // keys of one tile; queries that meet it together
  int64_t padding;                        // what head_dim and value_dim are filled up to a multiple of
  int64_t packed_floats, scratch_floats;  // of the packed keys and values; of one worker's work area
  float* packed;                          // [batch, kv_heads, key_blocks] tiles; unused when decoding

  // Backward: the (query head of the group, query block) pairs of a kv head are cut into `parts`; each adds up its own grads.
  int64_t parts;
  const int32_t* part_begin;  // [batch, parts + 1], first pair of each part
  float* partial_grads;       // [batch, kv_heads, parts], of k and then of v: [key_blocks * key_block, width() or value_width()]

  // Decoding: maximum, sum and weighted values of kDecodeKeys keys each: [batch, heads, q_len, chunks, 16 + value_width()].
  float* decode_partials;

  INGOT_INLINED int64_t group() const { return heads / kv_heads; }
  INGOT_INLINED int64_t width() const { return (head_dim + padding - 1) / padding * padding; }
  INGOT_INLINED int64_t value_width() const { return (value_dim + padding - 1) / padding * padding; }
  INGOT_INLINED int64_t query_blocks() const { return (q_len + query_block - 1) / query_block; }
  INGOT_INLINED int64_t key_blocks() const { return (k_len + key_block - 1) / key_block; }
  INGOT_INLINED int64_t key_tiles() const { return batch * kv_heads * key_blocks(); }
  INGOT_INLINED int64_t decode_chunks() const { return (k_len + kDecodeKeys - 1) / kDecodeKeys; }
  INGOT_INLINED int64_t part_size() const { return key_blocks() * key_block * (width() + value_width()); }  // of partial_grads

  // The keys that query i of batch element b sees: [first_key, last_key], none when last_key is smaller.
  INGOT_INLINED int64_t first_key(int64_t b, int64_t i) const { return visible_from == nullptr ? 0 : visible_from[b * q_len + i]; }
  INGOT_INLINED int64_t last_key(int64_t b, int64_t i) const {
    if (visible_until != nullptr) return visible_until[b * q_len + i] - 1;
    const int64_t position = query_offset + i;
    return position < 0 ? -1 : position < k_len ? position : k_len - 1;
  }
};

struct AttentionTiles {
  // Blocks, padding and the sizes of work areas.
  void (*lay_out)(AttentionProblem&);
  // Packs one tile of keys and values; task in [0, key_tiles).
  void (*pack)(const AttentionProblem&, int64_t task);
  // One block of queries of one head; task in [0, batch * heads * query_blocks).
  void (*forward)(const AttentionProblem&, int64_t task, float* scratch);
  // One part of the gradients of one kv head; task in [0, batch * kv_heads * parts).
  void (*backward)(const AttentionProblem&, int64_t task, float* scratch);
  // Adds up the parts of one tile of grad_k and grad_v in fixed order; task as for pack.
  void (*reduce)(const AttentionProblem&, int64_t task);
  // A few queries against many keys: one chunk of keys of one kv head; task in [0, batch * kv_heads * decode_chunks).
  void (*decode)(const AttentionProblem&, int64_t task, float* scratch);
  // Joins the chunks of one query of one head; task in [0, batch * heads * q_len).
  void (*decode_join)(const AttentionProblem&, int64_t task);
};

namespace portable {
extern const AttentionTiles attention_tiles;
}
namespace avx2 {
extern const AttentionTiles attention_tiles;
}
namespace avx512 {
extern const AttentionTiles attention_tiles;
}
namespace avx512_bf16 {
extern const AttentionTiles attention_tiles;
}
namespace amx {
extern const AttentionTiles attention_tiles;
}

}  // namespace ingot::kernels::cpu

#undef INGOT_INLINED
