// Linear attention by the delta rule, with or without gates per head, both passes over a row. In the WY form (Yang et al. 2024, arXiv
// 2406.06484 §3, with gates 2412.06464): what the tokens of a chunk write, U, solves
//   (I + L) U = beta E    with E = v - decayed k S, L = beta (k k^T) decayed, strictly below the diagonal
// by substitution, blocks of rows at a time; the rest is as in linear_attention_forward.cpp with U for v. The gradient dU goes
// through the transposed system, X = (I + L)^-T dU, and with G = -X U^T, strictly below the diagonal:
//   dv = Y = beta X      dbeta = X E + G (k k^T) decayed, summed over rows      d(k k^T) = beta G decayed
//   dk gets -decayed Y S^T, and dS in front of the chunk -(decayed k)^T Y
// S of every chunk of a segment, U and E of its tokens are made again from the state in front of the segment.
//
// Limit: 4 chunk dim + 6 dim^2 operations a token forward and about 3 times as many backward: the multipliers.
#include "kernels/cpu/linear_attention_delta_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

struct Work {
  float *queries, *keys;              // rows [kLinearChunk, key step]
  float* keys_by_dim;                 // panels over tokens
  float *scores, *products, *system;  // [kLinearChunk, kScoreStride]: A; (k k^T) decayed, 0 on and above the diagonal; -L
  float *written, *errors;            // U and E, rows [kLinearChunk, value step]; backward: of every chunk of a segment
  float* written_panels;              // U, panels over value_dim
  float* result;                      // [kLinearChunk, larger step]
  float* state;                       // panels [key_dim, value_dim]
  // Backward:
  float *query_panels, *key_panels;           // panels over key_dim
  float* of_state;                            // [kLinearChunk, key step]
  float* grads;                               // of the output, rows
  float *written_by_dim, *grad_panels;        // U, panels over tokens; the output's gradient, panels over value_dim
  float *solution, *solution_panels;          // X, then Y: rows; panels over value_dim
  float *deltas, *grad_system;                // dA, then decayed; G, then d(k k^T)
  float *reads, *writes, *passed;             // [kLinearChunk]: what gates get from reads and writes of states, and from pairs
  float *grad_state, *grad_state_transposed;  // dS: panels [key_dim, value_dim]; dS^T: panels [value_dim, key_dim]
  float* states;                              // S^T in front of each chunk of a segment: panels [value_dim, key_dim]
  int64_t state_size, key_step, value_step, taken;
  Decays decays;

  Work(const LinearAttentionProblem& p, float* scratch, bool is_backward) : Work(p, Areas(scratch), is_backward) {}

 private:
  Work(const LinearAttentionProblem& p, Areas areas, bool is_backward)
      : state_size(panels_size(p.value_dim, p.key_dim)), key_step(padded(p.key_dim)), value_step(padded(p.value_dim)), decays(areas) {
    const int64_t key = kLinearChunk * key_step, value = kLinearChunk * value_step, square = kLinearChunk * kScoreStride;
    const int64_t chunks = is_backward ? kLinearSegment : 1;
    areas.give(key, queries, keys, keys_by_dim);
    areas.give(square, scores, products, system);
    areas.give(chunks * value, written, errors);
    written_panels = areas.take(value);
    result = areas.take(larger(key, value));
    state = areas.take(panels_size(p.key_dim, p.value_dim));
    if (is_backward) {
      areas.give(key, query_panels, key_panels, of_state);
      areas.give(value, grads, written_by_dim, grad_panels, solution, solution_panels);
      areas.give(square, deltas, grad_system);
      areas.give(kLinearChunk, reads, writes, passed);
      grad_state = areas.take(panels_size(p.key_dim, p.value_dim));
      grad_state_transposed = areas.take(state_size);
      states = areas.take(kLinearSegment * state_size);
    }
    taken = areas.taken();
  }
};

INGOT_INLINE const float* between_row(const LinearAttentionProblem& p, const Work& work, int64_t i) {
  return p.gate != nullptr ? work.decays.between + i * kScoreStride : nullptr;
}

template <class T>
INGOT_INLINE void load_keys(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work) {
  copy_rows(chunk.rows<T>(p.k), p.k.row_stride, chunk.count, p.key_dim, work.keys, work.key_step);
  pack_tokens_by_dim(work.keys, work.key_step, chunk.count, p.key_dim, work.keys_by_dim);
}

// (k k^T) decayed, and -L. Keys are loaded, and decays made.
INGOT_INLINE void make_system(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work) {
  const int64_t count = chunk.count;
  const float* const beta = betas(p, chunk);
  product_of_rows(kLinearChunk, p.key_dim, work.keys, work.key_step, work.keys_by_dim, work.products, kScoreStride, 1, [&](Range keys) {
    return Range{smaller(keys.begin, count), count};
  });
  for (int64_t i = 0; i < count; ++i) {
    float *const products = work.products + i * kScoreStride, *const system = work.system + i * kScoreStride;
    decay_row(products, between_row(p, work, i), i);
    products[i] = 0;
    for (int64_t j = 0; j < i; j += kLanes) store(system + j, load(products + j) * -beta[i]);
  }
}

// From the state in `state`: (k k^T), the system, E and U, the latter in panels as well. Leaves decayed keys in `keys`.
template <class T>
INGOT_INLINE void write(const LinearAttentionProblem& p, const TokenChunk& chunk, Work& work, float* written, float* errors) {
  const int64_t key_step = work.key_step, value_step = work.value_step, count = chunk.count;
  const float* const beta = betas(p, chunk);
  load_keys<T>(p, chunk, work);
  if (p.gate != nullptr) work.decays.make(p, chunk, true);
  make_system(p, chunk, work);
  if (p.gate != nullptr) scale_rows(work.keys, key_step, count, p.key_dim, work.decays.from_start);
  product_of_rows(p.value_dim, p.key_dim, work.keys, key_step, work.state, written, value_step, 1, [&](Range) { return Range{0, count}; });
  copy_rows(chunk.rows<T>(p.v), p.v.row_stride, count, p.value_dim, errors, value_step);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = i * value_step; d < i * value_step + p.value_dim; d += kLanes) {
      const Float error = load(errors + d) - load(written + d);
      store(errors + d, error);
      store(written + d, error * beta[i]);
    }
  substitute<false>(work.system, kScoreStride, count, p.value_dim, written, value_step, work.written_panels);
}

// The state behind the chunk. Reads the keys again, as they are not decayed to its end.
template <class T>
INGOT_INLINE void pass_state(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work) {
  copy_rows(chunk.rows<T>(p.k), p.k.row_stride, chunk.count, p.key_dim, work.keys, work.key_step);
  if (p.gate != nullptr) {
    scale(work.state, panels_size(p.key_dim, p.value_dim), work.decays.whole);
    scale_rows(work.keys, work.key_step, chunk.count, p.key_dim, work.decays.to_end);
  }
  add_to_panels(p.key_dim, p.value_dim, chunk.count, work.keys, work.key_step, work.written_panels, work.state);
}

template <class T>
INGOT_INLINE void forward_chunk(const LinearAttentionProblem& p, const TokenChunk& chunk, Work& work) {
  const int64_t key_step = work.key_step, value_step = work.value_step, count = chunk.count;
  write<T>(p, chunk, work, work.written, work.errors);
  copy_rows(chunk.rows<T>(p.q), p.q.row_stride, count, p.key_dim, work.queries, key_step);
  product_of_rows(kLinearChunk, p.key_dim, work.queries, key_step, work.keys_by_dim, work.scores, kScoreStride, 1, [&](Range keys) {
    return Range{smaller(keys.begin, count), count};
  });
  for (int64_t i = 0; i < count; ++i) decay_row(work.scores + i * kScoreStride, between_row(p, work, i), i);
  if (p.gate != nullptr) scale_rows(work.queries, key_step, count, p.key_dim, work.decays.from_start);
  product_of_rows(p.value_dim, p.key_dim, work.queries, key_step, work.state, work.result, value_step, 1, [&](Range) {
    return Range{0, count};
  });
  add_product<false>(count, p.value_dim, count, work.scores, kScoreStride, work.written_panels, work.result, value_step, [&](Range rows) {
    return Range{0, rows.end};
  });
  store_rows(work.result, value_step, count, p.value_dim, chunk.rows<T>(p.out), p.out.row_stride);
  pass_state<T>(p, chunk, work);
}

template <class T>
void forward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  Work work(p, scratch, false);
  walk_forward(p, task, work, [&](const TokenChunk& chunk) { forward_chunk<T>(p, chunk, work); });
}

// Scores, their gradients and the system's: what pairs give gates, then decayed.
INGOT_INLINE void differentiate_scores(const LinearAttentionProblem& p, const Work& work, int64_t count) {
  float later[kLinearChunk] = {};
  for (int64_t i = count; i-- > 0;) {
    float *const scores = work.scores + i * kScoreStride, *const deltas = work.deltas + i * kScoreStride;
    decay_row(scores, between_row(p, work, i), i);
    work.passed[i] = 0;
    if (p.grad_gate != nullptr) add_pairs(scores, deltas, i, later, work.passed);
    decay_row(deltas, between_row(p, work, i), i);
  }
}

// grad_beta, and from G the gradient of k k^T.
INGOT_INLINE void differentiate_system(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work, const float* errors) {
  const float* const beta = betas(p, chunk);
  float* const grad_beta = p.grad_beta + chunk.pair * p.seq + chunk.first;
  float later[kLinearChunk] = {};
  for (int64_t i = chunk.count; i-- > 0;) {
    const float *const products = work.products + i * kScoreStride, *const solution = work.solution + i * work.value_step;
    float* const grad = work.grad_system + i * kScoreStride;
    grad_beta[i] = dot_of_rows(solution, errors + i * work.value_step, p.value_dim) + dot_of_rows(grad, products, i);
    if (p.grad_gate != nullptr) {
      float* const of_system = work.result;  // a row of L
      for (int64_t j = 0; j < i; j += kLanes) store(of_system + j, load(products + j) * beta[i]);
      add_pairs(grad, of_system, i, later, work.passed);
    }
    decay_row(grad, between_row(p, work, i), i);
    grad[i] = 0;
    for (int64_t j = 0; j < i; j += kLanes) store(grad + j, load(grad + j) * beta[i]);
  }
}

// Rows decayed by `factors`; terms [i] += their products with `own` rows.
INGOT_INLINE void decay_rows(const LinearAttentionProblem& p, const Work& work, int64_t count, const float* factors, float* rows,
                             const float* own, float* terms) {
  if (p.gate == nullptr) return;
  scale_rows(rows, work.key_step, count, p.key_dim, factors);
  if (p.grad_gate == nullptr) return;
  for (int64_t i = 0; i < count; ++i) terms[i] += dot_of_rows(rows + i * work.key_step, own + i * work.key_step, p.key_dim);
}

INGOT_INLINE void store_gate_gradients(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work, float kept) {
  float* const grad_gate = p.grad_gate + chunk.pair * p.seq + chunk.first;
  float sum = 0;
  for (int64_t i = 0; i < chunk.count; sum += work.writes[i++]) grad_gate[i] = work.passed[i] + kept + sum;
  sum = 0;
  for (int64_t i = chunk.count; i-- > 0;) grad_gate[i] += sum += work.reads[i];
}

template <class T>
INGOT_INLINE void backward_chunk(const LinearAttentionProblem& p, const TokenChunk& chunk, Work& work, const float* state,
                                 const float* written, const float* errors) {
  const int64_t key_step = work.key_step, value_step = work.value_step, count = chunk.count;
  const auto rows_from = [&](Range keys) { return Range{smaller(keys.begin, count), count}; };
  const auto all_rows = [&](Range) { return Range{0, count}; };
  const auto up_to = [](Range rows) { return Range{0, rows.end}; };
  const auto from = [&](Range rows) { return Range{rows.begin, count}; };
  load_keys<T>(p, chunk, work);
  copy_rows(chunk.rows<T>(p.q), p.q.row_stride, count, p.key_dim, work.queries, key_step);
  copy_rows(chunk.rows<T>(p.grad_out), p.grad_out.row_stride, count, p.value_dim, work.grads, value_step);
  pack_tokens_by_dim(written, value_step, count, p.value_dim, work.written_by_dim);
  pack_by_row(work.queries, key_step, count, count, p.key_dim, work.query_panels);
  pack_by_row(work.keys, key_step, count, count, p.key_dim, work.key_panels);
  pack_by_row(work.grads, value_step, count, count, p.value_dim, work.grad_panels);
  if (p.gate != nullptr) work.decays.make(p, chunk, true);
  clear(work.reads, kLinearChunk);
  clear(work.writes, kLinearChunk);

  make_system(p, chunk, work);
  product_of_rows(kLinearChunk, p.key_dim, work.queries, key_step, work.keys_by_dim, work.scores, kScoreStride, 1, rows_from);
  product_of_rows(kLinearChunk, p.value_dim, work.grads, value_step, work.written_by_dim, work.deltas, kScoreStride, 1, rows_from);
  differentiate_scores(p, work, count);

  // dU, X, and all that comes of them.
  float* const to_end = work.result;  // decayed keys
  copy_rows(work.keys, key_step, count, p.key_dim, to_end, key_step);
  if (p.gate != nullptr) scale_rows(to_end, key_step, count, p.key_dim, work.decays.to_end);
  product_of_rows(p.value_dim, p.key_dim, to_end, key_step, work.grad_state, work.solution, value_step, 1, all_rows);
  add_product<true>(count, p.value_dim, count, work.scores, kScoreStride, work.grad_panels, work.solution, value_step, from);
  substitute<true>(work.system, kScoreStride, count, p.value_dim, work.solution, value_step, work.solution_panels);
  product_of_rows(kLinearChunk, p.value_dim, work.solution, value_step, work.written_by_dim, work.grad_system, kScoreStride, -1, rows_from);
  differentiate_system(p, chunk, work, errors);
  scale_rows(work.solution, value_step, count, p.value_dim, betas(p, chunk));
  store_rows(work.solution, value_step, count, p.value_dim, chunk.rows<T>(p.grad_v), p.grad_v.row_stride);

  product_of_rows(p.key_dim, p.value_dim, work.grads, value_step, state, work.result, key_step, 1, all_rows);
  decay_rows(p, work, count, work.decays.from_start, work.result, work.queries, work.reads);
  add_product<false>(count, p.key_dim, count, work.deltas, kScoreStride, work.key_panels, work.result, key_step, up_to);
  store_rows(work.result, key_step, count, p.key_dim, chunk.rows<T>(p.grad_q), p.grad_q.row_stride);

  product_of_rows(p.key_dim, p.value_dim, work.solution, value_step, state, work.of_state, key_step, -1, all_rows);
  decay_rows(p, work, count, work.decays.from_start, work.of_state, work.keys, work.reads);
  product_of_rows(p.key_dim, p.value_dim, written, value_step, work.grad_state_transposed, work.result, key_step, 1, all_rows);
  decay_rows(p, work, count, work.decays.to_end, work.result, work.keys, work.writes);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = i * key_step; d < i * key_step + p.key_dim; d += kLanes)
      store(work.result + d, load(work.result + d) + load(work.of_state + d));
  add_product<true>(count, p.key_dim, count, work.deltas, kScoreStride, work.query_panels, work.result, key_step, from);
  add_product<true>(count, p.key_dim, count, work.grad_system, kScoreStride, work.key_panels, work.result, key_step, from);
  add_product<false>(count, p.key_dim, count, work.grad_system, kScoreStride, work.key_panels, work.result, key_step, up_to);
  store_rows(work.result, key_step, count, p.key_dim, chunk.rows<T>(p.grad_k), p.grad_k.row_stride);

  if (p.grad_gate != nullptr)
    store_gate_gradients(p, chunk, work, work.decays.whole * dot(state, work.grad_state_transposed, work.state_size));
  if (p.gate != nullptr) {
    scale(work.grad_state, panels_size(p.key_dim, p.value_dim), work.decays.whole);
    scale_rows(work.queries, key_step, count, p.key_dim, work.decays.from_start);
    scale_rows(work.keys, key_step, count, p.key_dim, work.decays.from_start);
  }
  for (int64_t i = 0; i < count * key_step; i += kLanes) store(work.keys + i, -load(work.keys + i));
  pack_by_row(work.solution, value_step, count, count, p.value_dim, work.solution_panels);
  add_to_panels(p.key_dim, p.value_dim, count, work.queries, key_step, work.grad_panels, work.grad_state);
  add_to_panels(p.key_dim, p.value_dim, count, work.keys, key_step, work.solution_panels, work.grad_state);
  transpose_panels(work.grad_state, p.key_dim, p.value_dim, work.grad_state_transposed);
}

template <class T>
void backward(const LinearAttentionProblem& p, int64_t pair, float* scratch) {
  Work work(p, scratch, true);
  walk_delta_backward(
      p, pair, work, kLinearChunk * work.value_step,
      [&](const TokenChunk& chunk, int64_t, float* written, float* errors) { write<T>(p, chunk, work, written, errors); },
      [&](const TokenChunk& chunk, int64_t) { pass_state<T>(p, chunk, work); },
      [&](const TokenChunk& chunk, int64_t, const float* state, const float* written, const float* errors) {
        backward_chunk<T>(p, chunk, work, state, written, errors);
      });
}

}  // namespace

void linear_attention_delta_forward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  of_dtype<forward<float>, forward<bf16>>(p, task, scratch);
}
void linear_attention_delta_backward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  of_dtype<backward<float>, backward<bf16>>(p, task, scratch);
}

int64_t linear_attention_delta_scratch(const LinearAttentionProblem& p) { return Work(p, nullptr, true).taken; }

}  // namespace ingot::kernels::cpu::INGOT_ISA
