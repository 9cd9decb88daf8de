// Backward pass of one part of the queries that share a kv head. Algorithm: with S = scale q k^T (below its cap), P = exp(S - log_sum_exp)
// again by tile, D = rowsum(grad_out * out), dS = P * (grad_out v^T - D): grad_v = P^T grad_out, grad_k = scale dS^T q, grad_q = scale dS k
// (Dao et al. 2022, appendix B.2). The query block is the outer loop: grad_q of a block is complete after its tiles, grad_k and grad_v are
// added up in fp32 by this task alone and joined by attention_reduce. Deterministic: which task adds what in which order depends on the
// shapes and the mask only. Limit: 6 head_dim + 4 value_dim operations per score.
#include "kernels/cpu/attention_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

struct Work {
  float *queries, *query_panels;   // [count, width], and the same packed by row
  float *grads, *grad_panels;      // of the output, alike, [count, value_width]
  float *weights, *deltas;         // [count, kScoreStride]: S then P; grad_out v^T then dS
  float* grad_queries;             // [count, width]
  float *grad_keys, *grad_values;  // [key_blocks * kKeyBlock, width or value_width] of this part
  Work(const AttentionProblem& p, int64_t task, float* scratch) {
    const int64_t block = p.query_block * p.width(), value_block = p.query_block * p.value_width();
    float** const blocks[] = {&queries, &query_panels, &grad_queries};
    for (float** area : blocks) *area = scratch, scratch += block;
    float** const value_blocks[] = {&grads, &grad_panels};
    for (float** area : value_blocks) *area = scratch, scratch += value_block;
    weights = scratch;
    deltas = weights + p.query_block * kScoreStride;
    grad_keys = p.partial_grads + task * p.part_size();
    grad_values = grad_keys + p.key_blocks() * kKeyBlock * p.width();
  }
};

struct RowTerms {
  float log_sum_exp;  // base 2
  float mean;         // D above, the mean of grad_out v^T under P
};

// One row of a tile, in place: scores to P and grad_out v^T to dS; both 0 where the query does not see the key. Capped scores come as the
// tangent's argument, whose slope goes into dS.
template <bool capped>
INGOT_INLINE void differentiate(float* weights, float* deltas, Range keys, RowTerms terms, float cap) {
  const int64_t first = keys.end > keys.begin ? round_down(keys.begin, kLanes) : 0;
  const int64_t end = keys.end > keys.begin ? round_up(keys.end, kLanes) : 0;
  float* const rows[] = {weights, deltas};
  for (float* row : rows) {
    clear(row, first);
    clear(row + end, kKeyBlock - end);
  }
  for (int64_t j = first; j < end; j += kLanes) {
    Float score = load(weights + j), slope;
    if constexpr (capped) {
      const Tanh capped_score = tanh(score);
      score = capped_score.value * (cap * kLog2E), slope = capped_score.slope;
    }
    Float weight = exp2_of_negative(score - terms.log_sum_exp);
    Float delta = weight * (load(deltas + j) - terms.mean);
    if constexpr (capped) delta *= slope;
    if (j < keys.begin || j + kLanes > keys.end) {
      const Int visible = lanes_inside(j, keys);
      weight = visible ? weight : Float{};
      delta = visible ? delta : Float{};
    }
    store(weights + j, weight);
    store(deltas + j, delta);
  }
}

INGOT_INLINE void add_tile(const Work& work, const TileView& view, int64_t tile, const RowTerms* terms) {
  const AttentionProblem& p = view.queries.problem;
  const int64_t count = view.queries.count, width = p.width(), columns = round_up(p.head_dim, kLanes);
  const int64_t value_width = p.value_width(), value_columns = round_up(p.value_dim, kLanes);
  const auto rows_of = [&](Range keys) { return view.rows_of(keys); };
  const auto keys_of = [&](Range rows) { return view.keys_of(rows); };
  const PackedTile packed(p, tile);
  product_of_rows(kKeyBlock, p.head_dim, work.queries, width, packed.keys_by_dim, work.weights, kScoreStride, product_scale(p), rows_of);
  product_of_rows(kKeyBlock, p.value_dim, work.grads, value_width, packed.values_by_dim, work.deltas, kScoreStride, 1, rows_of);
  for (int64_t i = 0; i < count; ++i) {
    float *const weights = work.weights + i * kScoreStride, *const deltas = work.deltas + i * kScoreStride;
    const Range keys{view.begin(i), view.end(i)};
    p.cap > 0 ? differentiate<true>(weights, deltas, keys, terms[i], p.cap) : differentiate<false>(weights, deltas, keys, terms[i], 0);
  }
  add_product<false>(count, columns, kKeyBlock, work.deltas, kScoreStride, packed.keys, work.grad_queries, width, keys_of);
  add_product<true>(kKeyBlock, value_columns, count, work.weights, kScoreStride, work.grad_panels,
                    work.grad_values + view.first_key * value_width, value_width, rows_of);
  add_product<true>(kKeyBlock, columns, count, work.deltas, kScoreStride, work.query_panels, work.grad_keys + view.first_key * width, width,
                    rows_of);
}

template <class T>
INGOT_INLINE void add_queries(const AttentionProblem& p, const Work& work, const QueryBlock& queries, int64_t head) {
  const int64_t b = queries.batch, width = p.width(), count = queries.count;
  const T* q = row<T>(p.q, b, queries.first, head);
  const T* grad = row<T>(p.grad_out, b, queries.first, head);
  copy_rows(q, p.q.row_stride, count, p.head_dim, work.queries, width);
  copy_rows(grad, p.grad_out.row_stride, count, p.value_dim, work.grads, p.value_width());
  pack_by_row(q, p.q.row_stride, count, count, p.head_dim, work.query_panels);
  pack_by_row(grad, p.grad_out.row_stride, count, count, p.value_dim, work.grad_panels);
  clear(work.grad_queries, count * width);
  RowTerms terms[kMostQueries];
  for (int64_t i = 0; i < count; ++i)
    terms[i] = {p.log_sum_exp[(b * p.heads + head) * p.q_len + queries.first + i] * kLog2E,
                dot<T>(grad + i * p.grad_out.row_stride, row<T>(p.out, b, queries.first + i, head), p.value_dim)};

  const int64_t tiles = (b * p.kv_heads + head / p.group()) * p.key_blocks();
  for (int64_t block = queries.first_key_block(); block <= queries.last_key_block(); ++block)
    add_tile(work, TileView(queries, block), tiles + block, terms);

  for (int64_t i = 0; i < count; ++i) {
    T* to = row<T>(p.grad_q, b, queries.first + i, head);
    const float* from = work.grad_queries + i * width;
    int64_t d = 0;
    for (; d + kLanes <= p.head_dim; d += kLanes) store(to + d, load(from + d) * p.scale);
    if (d < p.head_dim) store_part(to + d, load(from + d) * p.scale, p.head_dim - d);
  }
}

template <class T>
void backward(const AttentionProblem& p, int64_t task, float* scratch) {
  const int64_t part = task % p.parts, kv_head = task / p.parts % p.kv_heads, b = task / p.parts / p.kv_heads;
  const Work work(p, task, scratch);
  clear(work.grad_keys, p.part_size());
  const int32_t* pairs = p.part_begin + b * (p.parts + 1) + part;
  for (int64_t pair = pairs[0]; pair < pairs[1]; ++pair)
    add_queries<T>(p, work, QueryBlock(p, b, pair % p.query_blocks()), kv_head * p.group() + pair / p.query_blocks());
}

}  // namespace

void attention_backward(const AttentionProblem& p, int64_t task, float* scratch) {
  p.is_bf16 ? backward<bf16>(p, task, scratch) : backward<float>(p, task, scratch);
}

int64_t attention_backward_scratch(const AttentionProblem& p) {
  return p.query_block * (3 * p.width() + 2 * p.value_width() + 2 * kScoreStride);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
