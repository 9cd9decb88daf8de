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
        first(task % p.key_blocks() * kKeyBlock),
        count(smaller(kKeyBlock, p.k_len - first)) {}
};

template <class T>
void pack(const AttentionProblem& p, int64_t task) {
  const KeyTile tile(p, task);
  if (tile.first + tile.count <= p.first_key(tile.batch, 0)) return;  // no query sees any of them
  const T* k = row<T>(p.k, tile.batch, tile.first, tile.kv_head);
  const T* v = row<T>(p.v, tile.batch, tile.first, tile.kv_head);
  const int64_t at = task * p.tile_size(), value_at = task * p.value_tile_size();
  pack_by_dim(k, p.k.row_stride, tile.count, p.head_dim, p.keys_by_dim + at);
  if (p.values != nullptr) pack_by_row(v, p.v.row_stride, tile.count, kKeyBlock, p.value_dim, p.values + value_at);
  if (p.keys != nullptr) pack_by_row(k, p.k.row_stride, tile.count, kKeyBlock, p.head_dim, p.keys + at);
  if (p.values_by_dim != nullptr) pack_by_dim(v, p.v.row_stride, tile.count, p.value_dim, p.values_by_dim + value_at);
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
  const float* values = keys + p.key_blocks() * p.tile_size();
  add_parts<T>(p, tile, keys + tile.first * p.width(), p.width(), p.scale, p.grad_k);
  add_parts<T>(p, tile, values + tile.first * p.value_width(), p.value_width(), 1, p.grad_v);
}

}  // namespace

void attention_pack(const AttentionProblem& p, int64_t task) { p.is_bf16 ? pack<bf16>(p, task) : pack<float>(p, task); }
void attention_reduce(const AttentionProblem& p, int64_t task) { p.is_bf16 ? reduce<bf16>(p, task) : reduce<float>(p, task); }

const AttentionTiles attention_tiles = {
    .pack = attention_pack,
    .forward = attention_forward,
    .forward_scratch = attention_forward_scratch,
    .backward = attention_backward,
    .backward_scratch = attention_backward_scratch,
    .reduce = attention_reduce,
    .decode = attention_decode,
    .decode_scratch = attention_decode_scratch,
    .decode_join = attention_decode_join,
};

}  // namespace ingot::kernels::cpu::INGOT_ISA
