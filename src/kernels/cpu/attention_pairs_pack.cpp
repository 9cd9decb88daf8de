// Brings blocks of keys and values into the operands of bf16 matmuls, once for all query blocks and heads that use them. Limit: memory
// bandwidth.
#include "kernels/cpu/attention_pairs_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {

void attention_pairs_forward(const AttentionProblem&, int64_t task, float* scratch);
int64_t attention_pairs_forward_scratch(const AttentionProblem&);  // floats
void attention_pairs_backward(const AttentionProblem&, int64_t task, float* scratch);
int64_t attention_pairs_backward_scratch(const AttentionProblem&);  // floats

namespace {

// [rows, width]
void pack_rows(const bf16* from, int64_t step, int64_t count, int64_t channels, int64_t width, bf16* to) {
  for (int64_t i = 0; i < kPairKeys; ++i)
    for (int64_t d = 0; d < width; d += kTile)
      _mm512_storeu_si512(to + i * width + d, i < count ? load_32(from + i * step + d, channels - d) : _mm512_setzero_si512());
}

// [width, rows]
void pack_by_channel(const bf16* from, int64_t step, int64_t count, int64_t channels, int64_t width, bf16* to) {
  for (int64_t row = 0; row < kPairKeys; row += kTile)
    for (int64_t d = 0; d < width; d += kTile)
      TransposedTile(from + d, step, channels - d, count, row).store(to + d * kPairKeys + row, kPairKeys);
}

void pack(const AttentionProblem& p, int64_t task) {
  const int64_t batch = task / (p.kv_heads * p.key_blocks()), kv_head = task / p.key_blocks() % p.kv_heads;
  const int64_t first = task % p.key_blocks() * kPairKeys, count = smaller(kPairKeys, p.k_len - first);
  if (first + count <= p.first_key(batch, 0)) return;  // no query sees any of them
  const bf16* k = row<bf16>(p.k, batch, first, kv_head);
  const bf16* v = row<bf16>(p.v, batch, first, kv_head);
  const PackedPairs to(p, task);
  pack_rows(k, p.k.row_stride, count, p.head_dim, p.width(), to.keys);
  if (p.pass == AttentionPass::backward) {
    pack_by_channel(k, p.k.row_stride, count, p.head_dim, p.width(), to.keys_by_dim);
    pack_rows(v, p.v.row_stride, count, p.value_dim, p.value_width(), to.values);
  } else {
    pack_by_channel(v, p.v.row_stride, count, p.value_dim, p.value_width(), to.values_by_dim);
  }
}

void lay_out(AttentionProblem& p) {
  p.padding = p.pass == AttentionPass::decode ? 16 : kTile;
  p.key_block = kPairKeys, p.query_block = kPairQueries;
  const bool is_backward = p.pass == AttentionPass::backward;
  p.packed_floats = p.key_tiles() * kPairKeys * ((is_backward ? 2 : 1) * p.width() + p.value_width()) / 2;
  p.scratch_floats = p.pass == AttentionPass::decode ? avx512::attention_decode_scratch(p)
                     : is_backward                   ? attention_pairs_backward_scratch(p)
                                                     : attention_pairs_forward_scratch(p);
}

}  // namespace

const AttentionTiles attention_tiles = {
    .lay_out = lay_out,
    .pack = pack,
    .forward = attention_pairs_forward,
    .backward = attention_pairs_backward,
    .reduce = avx512::attention_reduce,
    .decode = avx512::attention_decode,
    .decode_join = avx512::attention_decode_join,
};

}  // namespace ingot::kernels::cpu::INGOT_ISA
