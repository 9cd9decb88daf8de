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
  const T* k = row<T>(p.k, p, tile.batch, tile.first, tile.kv_head);
  const T* v = row<T>(p.v, p, tile.batch, tile.first, tile.kv_head);
  const int64_t at = task * p.tile_size();
  pack_by_dim(k, p.k.row_stride, tile.count, p.head_dim, p.keys_by_dim + at);
  if (p.values != nullptr) pack_by_row(v, p.v.row_stride, tile.count, kKeyBlock, p.head_dim, p.values + at);
  if (p.keys != nullptr) pack_by_row(k, p.k.row_stride, tile.count, kKeyBlock, p.head_dim, p.keys + at);
  if (p.values_by_dim != nullptr) pack_by_dim(v, p.v.row_stride, tile.count, p.head_dim, p.values_by_dim + at);
}

// grad [keys, head_dim] = factor * sum over parts, which lie part_step apart.
template <class T>
INGOT_INLINE void add_parts(const AttentionProblem& p, const KeyTile& tile, const float* parts, int64_t part_step, float factor,
                            const AttentionRows& grad) {
  for (int64_t i = 0; i < tile.count; ++i, parts += p.width()) {
    T* to = row<T>(grad, p, tile.batch, tile.first + i, tile.kv_head);
    for (int64_t d = 0; d < p.head_dim; d += kLanes) {
      Float sum = load(parts + d);
      for (int64_t part = 1; part < p.parts; ++part) sum += load(parts + part * part_step + d);
      if (d + kLanes <= p.head_dim) store(to + d, sum * factor);
      else store_part(to + d, sum * factor, p.head_dim - d);
    }
  }
}

template <class T>
void reduce(const AttentionProblem& p, int64_t task) {
  const KeyTile tile(p, task);
  const int64_t all_keys = p.key_blocks() * kKeyBlock * p.width();
  const float* parts = p.partial_grads + (tile.batch * p.kv_heads + tile.kv_head) * p.parts * 2 * all_keys + tile.first * p.width();
  add_parts<T>(p, tile, parts, 2 * all_keys, p.scale, p.grad_k);
  add_parts<T>(p, tile, parts + all_keys, 2 * all_keys, 1, p.grad_v);
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
