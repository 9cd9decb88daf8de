// Backward pass of linear attention over one part of a row. Algorithm: segment by segment from the end; the states in front of
// a segment's chunks are made again from the one in front of the segment; then, chunk by chunk from the end, with S in front of the
// chunk, dS behind it, A = (q k^T) decayed and dA = grad_out v^T, both masked:
//   dq = (dA decayed) k + decayed (grad_out S^T)      dk = (dA decayed)^T q + decayed (v dS^T)
//   dv = A^T grad_out + (decayed k) dS                dS = exp(all gates) dS + (decayed q)^T grad_out, in front of the chunk
// A gate's gradient is the sum of all terms that pass its token, added up without differences: pairs of a later and an earlier
// token dA * A, reads of S by it and later tokens, writes by earlier ones to dS, and S dS.
// Limit: 5 chunk dim (half the scores are skipped) + 10 dim^2 operations a token, S once more included: the multipliers.
#include "kernels/cpu/linear_attention_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

struct Work {
  float *queries, *keys;                      // [kLinearChunk, padded(key_dim)]
  float *values, *grads;                      // [kLinearChunk, padded(value_dim)]; grads: of the output
  float *keys_by_dim, *values_by_dim;         // panels over tokens
  float *query_panels, *key_panels;           // panels over key_dim
  float* grad_panels;                         // panels over value_dim
  float *scores, *deltas;                     // [kLinearChunk, kScoreStride]: A; dA, then decayed
  float* result;                              // [kLinearChunk, padded(larger dim)]
  float* states;                              // S^T in front of each chunk of a segment and behind the last: panels [value_dim, key_dim]
  float *grad_state, *grad_state_transposed;  // dS: panels [key_dim, value_dim]; dS^T: panels [value_dim, key_dim]
  float* gate_sums;                           // [kLinearChunk]
  int64_t state_size;                         // of S^T in panels
  Decays decays;

  int64_t taken;

  Work(const LinearAttentionProblem& p, float* scratch) : Work(p, Areas(scratch)) {}

 private:
  Work(const LinearAttentionProblem& p, Areas areas) : state_size(panels_size(p.value_dim, p.key_dim)), decays(areas) {
    const int64_t key = kLinearChunk * padded(p.key_dim), value = kLinearChunk * padded(p.value_dim);
    areas.give(key, queries, keys, keys_by_dim, query_panels, key_panels);
    areas.give(value, values, grads, values_by_dim, grad_panels);
    areas.give(kLinearChunk * kScoreStride, scores, deltas);
    result = areas.take(larger(key, value));
    states = areas.take((kLinearSegment + 1) * state_size);
    grad_state = areas.take(panels_size(p.key_dim, p.value_dim));
    grad_state_transposed = areas.take(state_size);
    gate_sums = areas.take(kLinearChunk);
    taken = areas.taken();
  }
};

// S^T behind the chunk from that in front of it. The keys of the panels are decayed to the chunk's end.
template <class T>
INGOT_INLINE void pass_state(const LinearAttentionProblem& p, const TokenChunk& chunk, Work& work, const float* before, float* behind) {
  const int64_t key_step = padded(p.key_dim), value_step = padded(p.value_dim), count = chunk.count;
  copy_rows(chunk.rows<T>(p.k), p.k.row_stride, count, p.key_dim, work.keys, key_step);
  copy_rows(chunk.rows<T>(p.v), p.v.row_stride, count, p.value_dim, work.values, value_step);
  float whole = 1;
  if (p.gate != nullptr) {
    work.decays.make(p, chunk, false);
    whole = work.decays.whole;
    scale_rows(work.keys, key_step, count, p.key_dim, work.decays.to_end);
  }
  for (int64_t i = 0; i < work.state_size; i += kLanes) store(behind + i, load(before + i) * whole);
  pack_by_row(work.keys, key_step, count, count, p.key_dim, work.key_panels);
  add_to_panels(p.value_dim, p.key_dim, count, work.values, value_step, work.key_panels, behind);
}

// dS in front of the chunk; the queries become decayed ones.
INGOT_INLINE void pass_gradient(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work) {
  const int64_t key_step = padded(p.key_dim), count = chunk.count;
  if (p.gate != nullptr) {
    scale(work.grad_state, panels_size(p.key_dim, p.value_dim), work.decays.whole);
    scale_rows(work.queries, key_step, count, p.key_dim, work.decays.from_start);
  }
  add_to_panels(p.key_dim, p.value_dim, count, work.queries, key_step, work.grad_panels, work.grad_state);
}

// A and dA of all rows, decayed; with gates, what pairs of tokens give their gradients.
INGOT_INLINE void differentiate_scores(const LinearAttentionProblem& p, const Work& work, int64_t count) {
  float later[kLinearChunk] = {};  // of each earlier token: dA * A summed over this row and those below
  for (int64_t i = count; i-- > 0;) {
    float* const scores = work.scores + i * kScoreStride;
    float* const deltas = work.deltas + i * kScoreStride;
    const float* between = p.gate != nullptr ? work.decays.between + i * kScoreStride : nullptr;
    decay_row(scores, between, i);
    work.gate_sums[i] = 0;
    if (p.grad_gate != nullptr) add_pairs(scores, deltas, i, later, work.gate_sums);
    decay_row(deltas, between, i);
  }
}

// result rows decayed by `factors`; with gates the products with `own` rows, [count], which are what the rows read or write.
INGOT_INLINE void decay_result(const LinearAttentionProblem& p, const Work& work, int64_t count, const float* factors, const float* own,
                               float* terms) {
  const int64_t step = padded(p.key_dim);
  scale_rows(work.result, step, count, p.key_dim, factors);
  if (terms == nullptr) return;
  for (int64_t i = 0; i < count; ++i) terms[i] = dot_of_rows(work.result + i * step, own + i * step, p.key_dim);
}

template <class T>
INGOT_INLINE void backward_chunk(const LinearAttentionProblem& p, const TokenChunk& chunk, Work& work, const float* state) {
  const int64_t key_step = padded(p.key_dim), value_step = padded(p.value_dim), count = chunk.count;
  const auto rows_from = [&](Range keys) { return Range{keys.begin, count}; };
  const auto all_rows = [&](Range) { return Range{0, count}; };
  const auto up_to = [](Range rows) { return Range{0, rows.end}; };
  const auto from = [&](Range rows) { return Range{rows.begin, count}; };
  copy_rows(chunk.rows<T>(p.q), p.q.row_stride, count, p.key_dim, work.queries, key_step);
  copy_rows(chunk.rows<T>(p.k), p.k.row_stride, count, p.key_dim, work.keys, key_step);
  copy_rows(chunk.rows<T>(p.v), p.v.row_stride, count, p.value_dim, work.values, value_step);
  copy_rows(chunk.rows<T>(p.grad_out), p.grad_out.row_stride, count, p.value_dim, work.grads, value_step);
  pack_tokens_by_dim(work.keys, key_step, count, p.key_dim, work.keys_by_dim);
  pack_tokens_by_dim(work.values, value_step, count, p.value_dim, work.values_by_dim);
  pack_by_row(work.queries, key_step, count, count, p.key_dim, work.query_panels);
  pack_by_row(work.keys, key_step, count, count, p.key_dim, work.key_panels);
  pack_by_row(work.grads, value_step, count, count, p.value_dim, work.grad_panels);
  product_of_rows(kLinearChunk, p.key_dim, work.queries, key_step, work.keys_by_dim, work.scores, kScoreStride, 1, rows_from);
  product_of_rows(kLinearChunk, p.value_dim, work.grads, value_step, work.values_by_dim, work.deltas, kScoreStride, 1, rows_from);
  if (p.gate != nullptr) work.decays.make(p, chunk, true);
  differentiate_scores(p, work, count);

  float reads[kLinearChunk], writes[kLinearChunk];
  const bool has_gate = p.grad_gate != nullptr;
  product_of_rows(p.key_dim, p.value_dim, work.grads, value_step, state, work.result, key_step, 1, all_rows);
  if (p.gate != nullptr) decay_result(p, work, count, work.decays.from_start, work.queries, has_gate ? reads : nullptr);
  add_product<false>(count, p.key_dim, count, work.deltas, kScoreStride, work.key_panels, work.result, key_step, up_to);
  store_rows(work.result, key_step, count, p.key_dim, chunk.rows<T>(p.grad_q), p.grad_q.row_stride);

  product_of_rows(p.key_dim, p.value_dim, work.values, value_step, work.grad_state_transposed, work.result, key_step, 1, all_rows);
  if (p.gate != nullptr) decay_result(p, work, count, work.decays.to_end, work.keys, has_gate ? writes : nullptr);
  add_product<true>(count, p.key_dim, count, work.deltas, kScoreStride, work.query_panels, work.result, key_step, from);
  store_rows(work.result, key_step, count, p.key_dim, chunk.rows<T>(p.grad_k), p.grad_k.row_stride);

  if (p.gate != nullptr) scale_rows(work.keys, key_step, count, p.key_dim, work.decays.to_end);
  product_of_rows(p.value_dim, p.key_dim, work.keys, key_step, work.grad_state, work.result, value_step, 1, all_rows);
  add_product<true>(count, p.value_dim, count, work.scores, kScoreStride, work.grad_panels, work.result, value_step, from);
  store_rows(work.result, value_step, count, p.value_dim, chunk.rows<T>(p.grad_v), p.grad_v.row_stride);

  if (has_gate) {
    float* const grad_gate = p.grad_gate + chunk.pair * p.seq + chunk.first;
    const float kept = work.decays.whole * dot(state, work.grad_state_transposed, work.state_size);
    float sum = 0;
    for (int64_t i = 0; i < count; sum += writes[i++]) grad_gate[i] = work.gate_sums[i] + kept + sum;
    sum = 0;
    for (int64_t i = count; i-- > 0;) grad_gate[i] += sum += reads[i];
  }
  pass_gradient(p, chunk, work);
  transpose_panels(work.grad_state, p.key_dim, p.value_dim, work.grad_state_transposed);
}

template <class T>
void backward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  Work work(p, scratch);
  walk_backward(
      p, task, work, [&](const TokenChunk& chunk, const float* before, float* behind) { pass_state<T>(p, chunk, work, before, behind); },
      [&](const TokenChunk& chunk, const float* state) { backward_chunk<T>(p, chunk, work, state); });
}

template <class T>
void part_gradient(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  Work work(p, scratch);
  walk_gradient(p, task, work, [&](const TokenChunk& chunk) {
    copy_rows(chunk.rows<T>(p.q), p.q.row_stride, chunk.count, p.key_dim, work.queries, padded(p.key_dim));
    pack_by_row(chunk.rows<T>(p.grad_out), p.grad_out.row_stride, chunk.count, chunk.count, p.value_dim, work.grad_panels);
    if (p.gate != nullptr) work.decays.make(p, chunk, false);
    pass_gradient(p, chunk, work);
  });
}

}  // namespace

void linear_attention_backward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  of_dtype<backward<float>, backward<bf16>>(p, task, scratch);
}
void linear_attention_part_gradient(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  of_dtype<part_gradient<float>, part_gradient<bf16>>(p, task, scratch);
}

int64_t linear_attention_scratch(const LinearAttentionProblem& p) { return Work(p, nullptr).taken; }

}  // namespace ingot::kernels::cpu::INGOT_ISA
