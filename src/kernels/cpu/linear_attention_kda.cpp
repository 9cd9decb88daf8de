// Kimi Delta Attention (arXiv 2510.26692): the delta rule with a gate per channel of keys, both passes over a row. The equations are those
// of linear_attention_delta.cpp; as in linear_attention_channels.cpp products of queries and keys, A, and of keys and keys, P, have each
// channel decay by itself from the earlier to the later token, so that chunks are short and their pairs of tokens are visited one by one,
// once for both. Backward a pair gives queries and keys their gradients by dA and by dP = beta G at once, and both pass the gates between
// its tokens.
//
// Limit: 6 dim^2 operations a token forward and about 3 times as many backward, in products of short depth; and chunk / 2 pairs of 3
// (forward) and 9 (backward) operations on vectors of channels.
#include "kernels/cpu/linear_attention_channels_block.h"
#include "kernels/cpu/linear_attention_delta_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

constexpr int64_t kChunk = kLinearChannelsChunk;
constexpr int64_t kSquare = kChunk * kTokenStride;

struct Work {
  float *queries, *keys;               // rows [kChunk, key step]
  float *gates, *from_start, *to_end;  // decays [kChunk, key step]: of each token; from the chunk's start; to its end
  float* decayed;                      // keys or decays to the present token [kChunk, key step]
  float *scores, *products;  // A and P [kChunk, kTokenStride], 0 above the diagonal, of P on it, too; backward: of every chunk of a segment
  float* system;             // -L = -beta P
  float *written, *errors;   // U and E, rows [kChunk, value step]; backward: of every chunk of a segment
  float* written_panels;     // U, panels over value_dim
  float* result;             // [kChunk, larger step]
  float* state;              // panels [key_dim, value_dim]
  // Backward:
  float *grad_q, *grad_k, *of_state;          // rows of keys
  float *reads, *writes, *passed;             // rows of keys: what gates get from reads and writes of states, and from pairs
  float* grads;                               // of the output, rows
  float *written_by_dim, *grad_panels;        // U, panels over tokens; the output's gradient, panels over value_dim
  float *solution, *solution_panels;          // X, then Y: rows; panels over value_dim
  float *deltas, *grad_products;              // dA; G, then dP
  float *grad_state, *grad_state_transposed;  // dS: panels [key_dim, value_dim]; dS^T: panels [value_dim, key_dim]
  float* states;                              // S^T in front of each chunk of a segment: panels [value_dim, key_dim]
  int64_t state_size, key_step, value_step, taken;

  Work(const LinearAttentionProblem& p, float* scratch, bool is_backward)
      : state_size(panels_size(p.value_dim, p.key_dim)), key_step(padded(p.key_dim)), value_step(padded(p.value_dim)) {
    Areas areas(scratch);
    const int64_t key = kChunk * key_step, value = kChunk * value_step, chunks = is_backward ? kLinearSegment : 1;
    areas.give(key, queries, keys, gates, from_start, to_end, decayed);
    areas.give(chunks * kSquare, scores, products);
    areas.give(chunks * value, written, errors);
    system = areas.take(kSquare);
    written_panels = areas.take(value);
    result = areas.take(larger(key, value));
    state = areas.take(panels_size(p.key_dim, p.value_dim));
    if (is_backward) {
      areas.give(key, grad_q, grad_k, of_state, reads, writes, passed);
      areas.give(value, grads, grad_panels, solution, solution_panels);
      written_by_dim = areas.take(kTokenColumns * value_step);
      areas.give(kSquare, deltas, grad_products);
      grad_state = areas.take(panels_size(p.key_dim, p.value_dim));
      grad_state_transposed = areas.take(state_size);
      states = areas.take(kLinearSegment * state_size);
    }
    taken = areas.taken();
  }
};

template <class T>
INGOT_INLINE void load_queries_and_keys(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work) {
  copy_rows(chunk.rows<T>(p.q), p.q.row_stride, chunk.count, p.key_dim, work.queries, work.key_step);
  copy_rows(chunk.rows<T>(p.k), p.k.row_stride, chunk.count, p.key_dim, work.keys, work.key_step);
}

// A and P of all pairs. Leaves the keys decayed to the chunk's end in `decayed`.
INGOT_INLINE void make_pairs(const LinearAttentionProblem& p, const Work& work, int64_t count, float* scores, float* products) {
  const int64_t step = work.key_step;
  copy_rows(work.keys, step, count, p.key_dim, work.decayed, step);
  for (int64_t i = 0; i < count; ++i, scores += kTokenStride, products += kTokenStride) {
    const float *query = work.queries + i * step, *own = work.keys + i * step, *gate = work.gates + i * step;
    clear(scores, kTokenColumns);
    clear(products, kTokenColumns);
    for (int64_t j = 0; j < i; ++j) {
      float* const key = work.decayed + j * step;
      Float score{}, product{};
      for (int64_t d = 0; d < p.key_dim; d += kLanes) {
        const Float x = load(key + d) * load(gate + d);
        store(key + d, x);
        score += x * load(query + d);
        product += x * load(own + d);
      }
      scores[j] = sum_of_lanes(score)[0];
      products[j] = sum_of_lanes(product)[0];
    }
    scores[i] = dot(query, own, p.key_dim);
  }
}

// -L, as far as rows of P reach.
INGOT_INLINE void make_system(const Work& work, int64_t count, const float* beta, const float* products) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t j = 0; j < kTokenColumns; j += kLanes)
      store(work.system + i * kTokenStride + j, load(products + i * kTokenStride + j) * -beta[i]);
}

// From the state in `state`: decays, A, P, E and U, the latter in panels as well. Leaves keys decayed from the chunk's start in `keys`, and
// to its end in `decayed`.
template <class T>
INGOT_INLINE void write(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work, float* scores, float* products,
                        float* written, float* errors) {
  const int64_t value_step = work.value_step, count = chunk.count;
  const float* const beta = betas(p, chunk);
  load_queries_and_keys<T>(p, chunk, work);
  make_decays(p, chunk, work);
  make_pairs(p, work, count, scores, products);
  make_system(work, count, beta, products);
  multiply_rows(work.keys, work.from_start, work.key_step, count, p.key_dim);
  product_of_rows(p.value_dim, p.key_dim, work.keys, work.key_step, work.state, written, value_step, 1, [&](Range) {
    return Range{0, count};
  });
  copy_rows(chunk.rows<T>(p.v), p.v.row_stride, count, p.value_dim, errors, value_step);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = i * value_step; d < i * value_step + p.value_dim; d += kLanes) {
      const Float error = load(errors + d) - load(written + d);
      store(errors + d, error);
      store(written + d, error * beta[i]);
    }
  substitute<false>(work.system, kTokenStride, count, p.value_dim, written, value_step, work.written_panels);
}

// The state behind the chunk that was just written.
INGOT_INLINE void pass_state(const LinearAttentionProblem& p, const Work& work, int64_t count) {
  decay_channels(p, whole_decay(work, count), work.state);
  add_to_panels(p.key_dim, p.value_dim, count, work.decayed, work.key_step, work.written_panels, work.state);
}

template <class T>
INGOT_INLINE void forward_chunk(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work) {
  const int64_t key_step = work.key_step, value_step = work.value_step, count = chunk.count;
  write<T>(p, chunk, work, work.scores, work.products, work.written, work.errors);
  multiply_rows(work.queries, work.from_start, key_step, count, p.key_dim);
  product_of_rows(p.value_dim, p.key_dim, work.queries, key_step, work.state, work.result, value_step, 1, [&](Range) {
    return Range{0, count};
  });
  add_product<false>(count, p.value_dim, count, work.scores, kTokenStride, work.written_panels, work.result, value_step, [&](Range rows) {
    return Range{0, rows.end};
  });
  store_rows(work.result, value_step, count, p.value_dim, chunk.rows<T>(p.out), p.out.row_stride);
  pass_state(p, work, count);
}

template <class T>
void forward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  const Work work(p, scratch, false);
  walk_forward(p, task, work, [&](const TokenChunk& chunk) { forward_chunk<T>(p, chunk, work); });
}

// grad_beta, and dP from G.
INGOT_INLINE void differentiate_system(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work, const float* products,
                                       const float* errors) {
  const float* const beta = betas(p, chunk);
  float* const grad_beta = p.grad_beta + chunk.pair * p.seq + chunk.first;
  for (int64_t i = 0; i < chunk.count; ++i) {
    float* const grad = work.grad_products + i * kTokenStride;
    grad_beta[i] = dot_of_rows(work.solution + i * work.value_step, errors + i * work.value_step, p.value_dim) +
                   dot_of_rows(grad, products + i * kTokenStride, i);
    for (int64_t j = 0; j < i; ++j) grad[j] *= beta[i];
  }
}

// Adds to grad_q and grad_k what pairs give them, and makes `passed` [t]: the terms of pairs that pass token t.
INGOT_INLINE void differentiate_pairs(const LinearAttentionProblem& p, const Work& work, int64_t count) {
  const int64_t step = work.key_step;
  clear(work.passed, count * step);
  for (int64_t i = 0; i < count; ++i) {
    const float *deltas = work.deltas + i * kTokenStride, *grad_products = work.grad_products + i * kTokenStride;
    for (int64_t d = i * step; d < i * step + p.key_dim; d += kLanes) {  // column by column: sums over earlier tokens stay in registers
      const Float query = load(work.queries + d), own = load(work.keys + d), factor = load(work.gates + d);
      Float by_score{}, by_product{}, passed{};
      for (int64_t j = 0; j < i; ++j) {
        const int64_t at = d - (i - j) * step;
        const Float decay = load(work.decayed + at) * factor, key = decay * load(work.keys + at);
        const Float delta = broadcast(deltas[j]), grad = broadcast(grad_products[j]), reader = delta * query + grad * own;
        store(work.decayed + at, decay);
        by_score += delta * key;
        by_product += grad * key;
        passed += reader * key;
        store(work.passed + at + step, load(work.passed + at + step) + passed);
        store(work.grad_k + at, load(work.grad_k + at) + decay * reader);
      }
      const Float delta = broadcast(deltas[i]);
      store(work.grad_q + d, load(work.grad_q + d) + by_score + delta * own);
      store(work.grad_k + d, load(work.grad_k + d) + by_product + delta * query);
      store(work.decayed + d, broadcast(1));
    }
  }
}

template <class T>
INGOT_INLINE void backward_chunk(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work, const float* state,
                                 const float* scores, const float* products, const float* written, const float* errors) {
  const int64_t key_step = work.key_step, value_step = work.value_step, count = chunk.count;
  const auto rows_from = [&](Range tokens) { return Range{smaller(tokens.begin, count), count}; };
  const auto all_rows = [&](Range) { return Range{0, count}; };
  const auto from = [&](Range rows) { return Range{rows.begin, count}; };
  const float* const beta = betas(p, chunk);
  load_queries_and_keys<T>(p, chunk, work);
  copy_rows(chunk.rows<T>(p.grad_out), p.grad_out.row_stride, count, p.value_dim, work.grads, value_step);
  pack_by_row(work.grads, value_step, count, count, p.value_dim, work.grad_panels);
  pack_tokens_by_dim(written, value_step, count, p.value_dim, work.written_by_dim, kTokenColumns);
  make_decays(p, chunk, work);
  make_system(work, count, beta, products);
  product_of_rows(kTokenColumns, p.value_dim, work.grads, value_step, work.written_by_dim, work.deltas, kTokenStride, 1, rows_from);

  // dU, X, and all that comes of them.
  float* const to_end = work.result;  // decayed keys
  copy_rows(work.keys, key_step, count, p.key_dim, to_end, key_step);
  multiply_rows(to_end, work.to_end, key_step, count, p.key_dim);
  product_of_rows(p.value_dim, p.key_dim, to_end, key_step, work.grad_state, work.solution, value_step, 1, all_rows);
  add_product<true>(count, p.value_dim, count, scores, kTokenStride, work.grad_panels, work.solution, value_step, from);
  substitute<true>(work.system, kTokenStride, count, p.value_dim, work.solution, value_step, work.solution_panels);
  product_of_rows(kTokenColumns, p.value_dim, work.solution, value_step, work.written_by_dim, work.grad_products, kTokenStride, -1,
                  rows_from);
  differentiate_system(p, chunk, work, products, errors);
  scale_rows(work.solution, value_step, count, p.value_dim, beta);
  store_rows(work.solution, value_step, count, p.value_dim, chunk.rows<T>(p.grad_v), p.grad_v.row_stride);

  // What reads and writes of states give queries, keys and gates; then pairs.
  product_of_rows(p.key_dim, p.value_dim, work.grads, value_step, state, work.grad_q, key_step, 1, all_rows);
  product_of_rows(p.key_dim, p.value_dim, work.solution, value_step, state, work.of_state, key_step, -1, all_rows);
  product_of_rows(p.key_dim, p.value_dim, written, value_step, work.grad_state_transposed, work.grad_k, key_step, 1, all_rows);
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = i * key_step; d < i * key_step + p.key_dim; d += kLanes) {
      const Float so_far = load(work.from_start + d), key = load(work.keys + d);
      const Float grad_q = load(work.grad_q + d) * so_far, of_state = load(work.of_state + d) * so_far;
      const Float grad_k = load(work.grad_k + d) * load(work.to_end + d);
      store(work.reads + d, load(work.queries + d) * grad_q + key * of_state);
      store(work.writes + d, key * grad_k);
      store(work.grad_q + d, grad_q);
      store(work.grad_k + d, grad_k + of_state);
    }
  differentiate_pairs(p, work, count);
  float kept[kLinearLargestDim];
  make_kept(p, work, state, whole_decay(work, count), kept);
  store_gate_gradients(p, chunk, work, kept, work.reads, work.writes);
  store_rows(work.grad_q, key_step, count, p.key_dim, chunk.rows<T>(p.grad_q), p.grad_q.row_stride);
  store_rows(work.grad_k, key_step, count, p.key_dim, chunk.rows<T>(p.grad_k), p.grad_k.row_stride);

  // dS in front of the chunk.
  decay_channels(p, whole_decay(work, count), work.grad_state);
  multiply_rows(work.queries, work.from_start, key_step, count, p.key_dim);
  multiply_rows(work.keys, work.from_start, key_step, count, p.key_dim);
  for (int64_t i = 0; i < count * key_step; i += kLanes) store(work.keys + i, -load(work.keys + i));
  pack_by_row(work.solution, value_step, count, count, p.value_dim, work.solution_panels);
  add_to_panels(p.key_dim, p.value_dim, count, work.queries, key_step, work.grad_panels, work.grad_state);
  add_to_panels(p.key_dim, p.value_dim, count, work.keys, key_step, work.solution_panels, work.grad_state);
  transpose_panels(work.grad_state, p.key_dim, p.value_dim, work.grad_state_transposed);
}

template <class T>
void backward(const LinearAttentionProblem& p, int64_t pair, float* scratch) {
  const Work work(p, scratch, true);
  walk_delta_backward(
      p, pair, work, kChunk * work.value_step,
      [&](const TokenChunk& chunk, int64_t n, float* written, float* errors) {
        write<T>(p, chunk, work, work.scores + n * kSquare, work.products + n * kSquare, written, errors);
      },
      [&](const TokenChunk& chunk, int64_t) { pass_state(p, work, chunk.count); },
      [&](const TokenChunk& chunk, int64_t n, const float* state, const float* written, const float* errors) {
        backward_chunk<T>(p, chunk, work, state, work.scores + n * kSquare, work.products + n * kSquare, written, errors);
      });
}

}  // namespace

void linear_attention_kda_forward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  of_dtype<forward<float>, forward<bf16>>(p, task, scratch);
}
void linear_attention_kda_backward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  of_dtype<backward<float>, backward<bf16>>(p, task, scratch);
}

int64_t linear_attention_kda_scratch(const LinearAttentionProblem& p) { return Work(p, nullptr, true).taken; }

}  // namespace ingot::kernels::cpu::INGOT_ISA
