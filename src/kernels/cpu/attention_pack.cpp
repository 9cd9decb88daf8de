// Brings one tile of keys and values into the panels that the products read, once for all query blocks and heads that use it,
// and adds up the gradients of such a tile. Limit: memory bandwidth, a few per cent of the whole.
#include "kernels/cpu/attention_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

struct KeyTile {
  int64_t batch, kv_head, first, count;  // count: keys that exist
  KeyTile(const AttentionProblem& p, int64_t task)
      : batch(task / (p.kv_heads * p.key_blocks())),
        kv_head(task / p.key_blocks() % p.kv_heads),
        first(task % p.key_blocks() * p.key_block),
        count(smaller(p.key_block, p.k_len - first)) {}
};

template <class T>
void pack(const AttentionProblem& p, int64_t task) {
  const KeyTile tile(p, task);
  if (tile.first + tile.count <= p.first_key(tile.batch, 0)) return;  // no query sees any of them
  const T* k = row<T>(p.k, tile.batch, tile.first, tile.kv_head);
  const T* v = row<T>(p.v, tile.batch, tile.first, tile.kv_head);
  const PackedTile to(p, task);
  pack_by_dim(k, p.k.row_stride, tile.count, p.head_dim, to.keys_by_dim);
  if (p.pass == AttentionPass::backward) {
    pack_by_dim(v, p.v.row_stride, tile.count, p.value_dim, to.values_by_dim);
    pack_by_row(k, p.k.row_stride, tile.count, kKeyBlock, p.head_dim, to.keys);
  } else {
    pack_by_row(v, p.v.row_stride, tile.count, kKeyBlock, p.value_dim, to.values);
  }
}

// grad [keys, channels] = factor * sum over parts, which lie part_size() apart and have rows of `width`.
template <class T>
INGOT_INLINE void add_parts(const AttentionProblem& p, const KeyTile& tile, const float* parts, int64_t width, float factor,
                            const AttentionRows& grad) {
  const int64_t channels = grad.head_dim, part_step = p.part_size();
  for (int64_t i = 0; i < tile.count; ++i, parts += width) {
    T* to = row<T>(grad, tile.batch, tile.first + i, tile.kv_head);
    for (int64_t d = 0; d < channels; d += kLanes) {
      Float sum = load(parts + d);
      for (int64_t part = 1; part < p.parts; ++part) sum += load(parts + part * part_step + d);
      if (d + kLanes <= channels) store(to + d, sum * factor);
      else store_part(to + d, sum * factor, channels - d);
    }
  }
}

template <class T>
void reduce(const AttentionProblem& p, int64_t task) {
  const KeyTile tile(p, task);
  const float* keys = p.partial_grads + (tile.batch * p.kv_heads + tile.kv_head) * p.parts * p.part_size();
  const float* values = keys + p.key_blocks() * p.key_block * p.width();
  add_parts<T>(p, tile, keys + tile.first * p.width(), p.width(), p.scale, p.grad_k);
  add_parts<T>(p, tile, values + tile.first * p.value_width(), p.value_width(), 1, p.grad_v);
}

}  // namespace

void attention_lay_out(AttentionProblem& p) {
  p.padding = 16;  // the widest vector
  p.key_block = kKeyBlock;
  p.query_block =
      p.head_dim <= 64 && p.value_dim <= 64 ? kMostQueries : kMostQueries / 2;  // tiles of the backward pass fill 300 to 400 KiB
  p.packed_floats = p.key_tiles() * kKeyBlock * ((p.pass == AttentionPass::backward ? 2 : 1) * p.width() + p.value_width());
  p.scratch_floats = p.pass == AttentionPass::decode     ? attention_decode_scratch(p)
                     : p.pass == AttentionPass::backward ? attention_backward_scratch(p)
                                                         : attention_forward_scratch(p);
}

void attention_pack(const AttentionProblem& p, int64_t task) { p.is_bf16 ? pack<bf16>(p, task) : pack<float>(p, task); }
void attention_reduce(const AttentionProblem& p, int64_t task) { p.is_bf16 ? reduce<bf16>(p, task) : reduce<float>(p, task); }

const AttentionTiles attention_tiles = {
    .lay_out = attention_lay_out,
    .pack = attention_pack,
    .forward = attention_forward,
    .backward = attention_backward,
    .reduce = attention_reduce,
    .decode = attention_decode,
    .decode_join = attention_decode_join,
};

}  // namespace ingot::kernels::cpu::INGOT_ISA
