// Forward pass of one block of queries. Algorithm: FlashAttention (Dao et al. 2022, algorithm 1) with the query block as the
// outer loop: scores of one tile of keys, running maximum and sum per row in base 2, weighted values added up in fp32. Work
// that no query of a block of rows needs is skipped inside the tiles on the edge of the mask. Saves only log_sum_exp. Limit:
// 2 (head_dim + value_dim) floating-point operations per score against about 15 for the softmax: the multipliers.
#include "kernels/cpu/attention_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

struct Work {
  float* queries;  // [count, width]
  float* scores;   // [count, kScoreStride]
  float* out;      // [count, value_width], not yet divided by the sum
  float* maximum;  // [count], of the scores seen so far
  float* sum;      // [count, kLanes], of 2^(score - maximum), lane by lane
  Work(const AttentionProblem& p, float* scratch) {
    const int64_t rows = p.query_block;
    queries = scratch;
    scores = queries + rows * p.width();
    out = scores + rows * kScoreStride;
    maximum = out + rows * p.value_width();
    sum = maximum + rows;
  }
};

// Hides the keys that a row does not see and returns by how much its maximum grows, as the factor that brings sums made with
// the old maximum to the new one.
INGOT_INLINE Float raise_maximum(float* scores, Range keys, float* maximum) {
  const int64_t first = round_down(keys.begin, kLanes), end = round_up(keys.end, kLanes);
  if (first < keys.begin || keys.end < end)
    for (int64_t j = first; j < end; j += kLanes)
      store(scores + j, lanes_inside(j, keys) ? load(scores + j) : broadcast(-__builtin_inff()));
  clear(scores, first);
  clear(scores + end, kKeyBlock - end);
  const Float before = broadcast(*maximum);
  Float largest = before;
  for (int64_t j = first; j < end; j += kLanes) largest = max(largest, load(scores + j));
  largest = max_of_lanes(largest);
  *maximum = largest[0];
  return exp2_of_negative(before - largest);
}

// Scores of one row to 2^(score - maximum), in place, added to sum [kLanes].
INGOT_INLINE void weigh(float* scores, Range keys, float maximum, float* sum) {
  Float total = load(sum);
  for (int64_t j = round_down(keys.begin, kLanes); j < keys.end; j += kLanes) {
    const Float weight = exp2_of_negative(load(scores + j) - maximum);
    store(scores + j, weight);
    total += weight;
  }
  store(sum, total);
}

// The two steps are loops of their own because each row's maximum and correction are a chain of dependent operations, which
// the processor overlaps with the next row's only while rows are short.
INGOT_INLINE void weigh_tile(const Work& work, const TileView& view, int64_t width, int64_t columns) {
  for (int64_t i = 0; i < view.queries.count; ++i) {
    float* const scores = work.scores + i * kScoreStride;
    const Range keys{view.begin(i), view.end(i)};
    if (keys.end <= keys.begin) {
      clear(scores, kKeyBlock);
      continue;
    }
    const Float factor = raise_maximum(scores, keys, work.maximum + i);
    if (factor[0] == 1) continue;
    float* const sum = work.sum + i * kLanes;
    store(sum, load(sum) * factor);
    for (float* out = work.out + i * width; out < work.out + i * width + columns; out += kLanes) store(out, load(out) * factor);
  }
  for (int64_t i = 0; i < view.queries.count; ++i) {
    const Range keys{view.begin(i), view.end(i)};
    if (keys.begin < keys.end) weigh(work.scores + i * kScoreStride, keys, work.maximum[i], work.sum + i * kLanes);
  }
}

INGOT_INLINE void add_tile(const Work& work, const TileView& view, int64_t tile) {
  const AttentionProblem& p = view.queries.problem;
  const int64_t width = p.value_width(), columns = round_up(p.value_dim, kLanes);
  const PackedTile packed(p, tile);
  product_of_rows(kKeyBlock, p.head_dim, work.queries, p.width(), packed.keys_by_dim, work.scores, kScoreStride, product_scale(p),
                  [&](Range keys) { return view.rows_of(keys); });
  if (p.cap > 0)
    for (int64_t i = 0; i < view.queries.count; ++i) cap_scores(work.scores + i * kScoreStride, kKeyBlock, p.cap);
  weigh_tile(work, view, width, columns);
  add_product<false>(view.queries.count, columns, kKeyBlock, work.scores, kScoreStride, packed.values, work.out, width,
                     [&](Range rows) { return view.keys_of(rows); });
}

template <class T>
void forward(const AttentionProblem& p, int64_t task, float* scratch) {
  const int64_t b = task % p.batch, head = task / p.batch % p.heads;
  const QueryBlock queries(p, b, p.query_blocks() - 1 - task / (p.batch * p.heads));  // those that see most keys first
  const Work work(p, scratch);
  const int64_t width = p.value_width();
  copy_rows(row<T>(p.q, b, queries.first, head), p.q.row_stride, queries.count, p.head_dim, work.queries, p.width());
  clear(work.out, queries.count * width);
  clear(work.sum, queries.count * kLanes);
  for (int64_t i = 0; i < queries.count; ++i) work.maximum[i] = -__builtin_inff();

  const int64_t tiles = (b * p.kv_heads + head / p.group()) * p.key_blocks();
  for (int64_t block = queries.first_key_block(); block <= queries.last_key_block(); ++block)
    add_tile(work, TileView(queries, block), tiles + block);

  for (int64_t i = 0; i < queries.count; ++i) {
    const float sum = sum_of_lanes(load(work.sum + i * kLanes))[0];
    p.log_sum_exp[(b * p.heads + head) * p.q_len + queries.first + i] = (work.maximum[i] + __builtin_log2f(sum)) * kLn2;
    float* from = work.out + i * width;
    T* to = row<T>(p.out, b, queries.first + i, head);
    const float factor = sum > 0 ? 1 / sum : 0;  // 0: sees none of the keys
    int64_t d = 0;
    for (; d + kLanes <= p.value_dim; d += kLanes) store(to + d, load(from + d) * factor);
    if (d < p.value_dim) store_part(to + d, load(from + d) * factor, p.value_dim - d);
  }
}

}  // namespace

void attention_forward(const AttentionProblem& p, int64_t task, float* scratch) {
  p.is_bf16 ? forward<bf16>(p, task, scratch) : forward<float>(p, task, scratch);
}

int64_t attention_forward_scratch(const AttentionProblem& p) {
  return p.query_block * (p.width() + p.value_width() + kScoreStride + 1 + kLanes) + kLanes;
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
