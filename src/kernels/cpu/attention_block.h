// Pieces that the forward and the backward pass share: which keys the queries of a tile see, and the packing of rows.
// For the sources that are compiled once per instruction set (isa.h).
#pragma once

#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/tile.h"

namespace ingot::kernels::cpu::INGOT_ISA {

inline constexpr int64_t kKeyBlock = 96;                 // keys of one tile: a multiple of every panel width and block height
inline constexpr int64_t kMostQueries = 96;              // of a block
inline constexpr int64_t kScoreStride = kKeyBlock + 16;  // of a row of scores; not a multiple of 256 bytes, which share cache sets

extern const AttentionTiles attention_tiles;
void attention_lay_out(AttentionProblem&);
void attention_pack(const AttentionProblem&, int64_t task);
void attention_forward(const AttentionProblem&, int64_t task, float* scratch);
int64_t attention_forward_scratch(const AttentionProblem&);  // floats
void attention_backward(const AttentionProblem&, int64_t task, float* scratch);
int64_t attention_backward_scratch(const AttentionProblem&);
void attention_reduce(const AttentionProblem&, int64_t task);
void attention_decode(const AttentionProblem&, int64_t task, float* scratch);
int64_t attention_decode_scratch(const AttentionProblem&);
void attention_decode_join(const AttentionProblem&, int64_t task);

// Keys and values of a tile in fp32, as panels over keys, [head_dim or value_dim, keys] each, or over channels, [keys, head_dim or
// value_dim].
struct PackedTile {
  float *keys_by_dim, *values;  // values: forward only
  float *values_by_dim, *keys;  // backward only
  PackedTile(const AttentionProblem& p, int64_t tile) {
    const int64_t size = kKeyBlock * p.width(), value_size = kKeyBlock * p.value_width();
    keys_by_dim = p.packed + tile * size;
    values = values_by_dim = p.packed + p.key_tiles() * size + tile * value_size;
    keys = p.packed + p.key_tiles() * (size + value_size) + tile * size;
  }
};

inline constexpr float kLog2E = 1.44269504089f, kLn2 = 0.693147180560f;

template <class T>
INGOT_INLINE T* row(const AttentionRows& x, int64_t b, int64_t i, int64_t head) {
  return static_cast<T*>(x.data) + b * x.batch_stride + i * x.row_stride + head * x.head_stride;
}

// tanh of a score within its cap, and its slope 1 - tanh^2, which is small where tanh is near 1; absolute errors some 1e-7.
struct Tanh {
  Float value, slope;
};
INGOT_INLINE Tanh tanh(Float x) {
  const Float e = exp2_of_negative(max(x, -x) * (-2 * kLog2E)), share = 1 / (1 + e), of_size = (1 - e) * share;
  return {x < Float{} ? -of_size : of_size, 4 * e * share * share};
}

// What products are multiplied by: scores in base 2, or where they are capped the tangent's argument.
INGOT_INLINE float product_scale(const AttentionProblem& p) { return p.cap > 0 ? p.scale / p.cap : p.scale * kLog2E; }

// Of `count` arguments, a multiple of kLanes, scores in base 2.
INGOT_INLINE void cap_scores(float* scores, int64_t count, float cap) {
  for (int64_t j = 0; j < count; j += kLanes) store(scores + j, tanh(load(scores + j)).value * (cap * kLog2E));
}

// One block of queries of one batch element.
struct QueryBlock {
  const AttentionProblem& problem;
  int64_t batch, first, count;
  QueryBlock(const AttentionProblem& p, int64_t b, int64_t block)
      : problem(p), batch(b), first(block * p.query_block), count(smaller(p.query_block, p.q_len - first)) {}
  int64_t first_key_block() const { return problem.first_key(batch, first) / kKeyBlock; }
  int64_t last_key_block() const { return (problem.last_key(batch, first + count - 1) + kKeyBlock) / kKeyBlock - 1; }  // -1: no key is seen
};

// What a block of queries sees of one block of keys. Rows and keys count from the beginning of the tile. Both ends of the run
// of keys that a query sees grow from query to query, hence the queries that see a run of keys are a run as well.
struct TileView {
  const QueryBlock& queries;
  int64_t first_key;
  TileView(const QueryBlock& block, int64_t key_block) : queries(block), first_key(key_block * kKeyBlock) {}

  int64_t begin(int64_t row) const { return larger(0, queries.problem.first_key(queries.batch, queries.first + row) - first_key); }
  int64_t end(int64_t row) const {
    return smaller(kKeyBlock, queries.problem.last_key(queries.batch, queries.first + row) + 1 - first_key);
  }
  Range keys_of(Range rows) const { return {begin(rows.begin), end(rows.end - 1)}; }  // empty when end <= begin
  Range rows_of(Range keys) const {
    const int64_t from = first_row_to(keys.begin);
    if (queries.problem.visible_from == nullptr) return {from, queries.count};
    int64_t low = from, high = queries.count;  // the first row whose run begins behind these keys lies in [low, high]
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (begin(middle) < keys.end) low = middle + 1;
      else high = middle;
    }
    return {from, low};
  }

 private:
  // The first row that sees a key of the tile from this one on, or the number of rows.
  int64_t first_row_to(int64_t key) const {
    if (queries.problem.visible_until == nullptr) {
      const int64_t position = queries.problem.query_offset + queries.first;
      return smaller(queries.count, larger(0, first_key + key - position));
    }
    int64_t low = 0, high = queries.count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (end(middle) > key) high = middle;
      else low = middle + 1;
    }
    return low;
  }
};

// -1 in the lanes that hold columns of `range`, for a vector that begins at `column`.
INGOT_INLINE Int lanes_inside(int64_t column, Range range) {
  const Int at = lane_index() + static_cast<int32_t>(column);
  return (at >= static_cast<int32_t>(range.begin)) & (at < static_cast<int32_t>(range.end));
}

template <class T>
INGOT_INLINE float dot(const T* a, const T* b, int64_t count) {
  Float sum{};
  int64_t d = 0;
  for (; d + kLanes <= count; d += kLanes) sum += load(a + d) * load(b + d);
  if (d < count) sum += load_part(a + d, count - d) * load_part(b + d, count - d);
  return sum_of_lanes(sum)[0];
}

INGOT_INLINE void clear(float* from, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) store(from + i, Float{});
}

// `count` rows of head_dim elements to fp32 rows of `step`, zeros up to the next whole vector.
template <class T>
INGOT_INLINE void copy_rows(const T* from, int64_t from_step, int64_t count, int64_t head_dim, float* to, int64_t step) {
  for (int64_t i = 0; i < count; ++i, from += from_step, to += step) {
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(to + d, load(from + d));
    if (d < head_dim) store(to + d, load_part(from + d, head_dim - d));
  }
}

// Rows as the right operand of a product over rows: panels over head_dim, each [depth, panel]; rows from `count` on are 0.
template <class T>
INGOT_INLINE void pack_by_row(const T* from, int64_t from_step, int64_t count, int64_t depth, int64_t head_dim, float* to) {
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t panel = round_down(d, kPanel), width = head_dim - panel > kLanes ? kPanel : kLanes;
    float* column = to + panel * depth + (d - panel);
    for (int64_t i = 0; i < depth; ++i) {
      const T* source = from + i * from_step + d;
      const Float x = i >= count ? Float{} : d + kLanes <= head_dim ? load(source) : load_part(source, head_dim - d);
      store(column + i * width, x);
    }
  }
}

// Rows as the right operand of a product over head_dim: panels over kKeyBlock rows, each [head_dim, panel].
template <class T>
INGOT_INLINE void pack_by_dim(const T* from, int64_t from_step, int64_t count, int64_t head_dim, float* to) {
  for (int64_t panel = 0; panel < kKeyBlock; panel += kPanel, to += kPanel * head_dim)
    for (int64_t i = 0; i < kPanel; ++i) {
      const T* source = from + (panel + i) * from_step;
      for (int64_t d = 0; d < head_dim; ++d) to[d * kPanel + i] = panel + i < count ? to_float(source[d]) : 0;
    }
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
