// Linear attention with a gate per channel of keys, both passes over one part of a row. Between two tokens each channel decays by
// itself, so scores are no product of matrices: chunks are short, and their pairs of tokens are visited one by one. A channel's
// decay from the earlier to the later token grows by one factor from pair to pair; factors are never divided, so that no gate is too
// strong and weak ones beside strong ones keep their digits. Between chunks as linear_attention_forward.cpp and _backward do it.
//
// A gate's gradient is the sum of all terms that pass its token: pairs of a later and an earlier token inside the chunk, reads of the
// state by it and later tokens, writes by earlier ones, and what the state keeps.
//
// Limit: 4 dim^2 operations a token forward and 10 backward, in products of short depth; and chunk / 2 pairs of 2 (forward) and 6
// (backward) operations on vectors of channels.
#include "kernels/cpu/linear_attention_channels_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

constexpr int64_t kChunk = kLinearChannelsChunk;

struct Work {
  float *queries, *keys;                      // [kChunk, key step]
  float *values, *grads;                      // [kChunk, value step]; grads: of the output
  float *gates, *from_start, *to_end;         // decays [kChunk, key step]: of each token; from the chunk's start; to its end
  float* decayed;                             // keys or decays to the present token [kChunk, key step]
  float* value_panels;                        // panels over value_dim, [tokens, value_dim]; in backward those of the output's gradient
  float* key_panels;                          // panels over key_dim, [tokens, key_dim]
  float* values_by_dim;                       // panels over tokens
  float *scores, *deltas;                     // [kChunk, kTokenStride]
  float *result, *grad_q, *grad_k, *passed;   // [kChunk, larger step]; passed: gate gradients of pairs
  float* state;                               // forward: panels [key_dim, value_dim]
  float* states;                              // backward: S^T in front of each chunk of a segment and behind the last: panels
  float *grad_state, *grad_state_transposed;  // dS: panels [key_dim, value_dim]; dS^T: panels [value_dim, key_dim]
  int64_t state_size, key_step, value_step, taken;

  Work(const LinearAttentionProblem& p, float* scratch)
      : state_size(panels_size(p.value_dim, p.key_dim)), key_step(padded(p.key_dim)), value_step(padded(p.value_dim)) {
    Areas areas(scratch);
    const int64_t key = kChunk * key_step, value = kChunk * value_step;
    areas.give(key, queries, keys, gates, from_start, to_end, decayed, key_panels, grad_q, grad_k, passed);
    areas.give(value, values, grads, value_panels);
    values_by_dim = areas.take(kTokenColumns * value_step);
    areas.give(kChunk * kTokenStride, scores, deltas);
    result = areas.take(larger(key, value));
    areas.give(panels_size(p.key_dim, p.value_dim), state, grad_state);
    grad_state_transposed = areas.take(state_size);
    states = areas.take((kLinearSegment + 1) * state_size);
    taken = areas.taken();
  }
};

// to = S^T in panels [value_dim, key_dim], each column decayed by its channel.
INGOT_INLINE void decay_channels_transposed(const LinearAttentionProblem& p, const float* whole, const float* from, float* to) {
  for (int64_t column = 0; column < p.key_dim; column += kPanel) {
    const int64_t width = p.key_dim - column > kLanes ? kPanel : kLanes;
    for (int64_t at = 0; at < width; at += kLanes) {
      const Float factor = load(whole + column + at);
      for (int64_t i = column * p.value_dim + at; i < (column + width) * p.value_dim; i += width) store(to + i, load(from + i) * factor);
    }
  }
}

// Scores of all pairs, 0 above the diagonal as far as blocks of rows reach. `decayed` must hold the keys; it leaves them decayed to
// the chunk's end.
INGOT_INLINE void make_scores(const LinearAttentionProblem& p, const Work& work, int64_t count) {
  const int64_t step = work.key_step;
  for (int64_t i = 0; i < count; ++i) {
    const float *query = work.queries + i * step, *gate = work.gates + i * step;
    float* const row = work.scores + i * kTokenStride;
    clear(row, kTokenColumns);
    for (int64_t j = 0; j < i; ++j) {
      float* const key = work.decayed + j * step;
      Float sum{};
      for (int64_t d = 0; d < p.key_dim; d += kLanes) {
        const Float x = load(key + d) * load(gate + d);
        store(key + d, x);
        sum += x * load(query + d);
      }
      row[j] = sum_of_lanes(sum)[0];
    }
    row[i] = dot(query, work.decayed + i * step, p.key_dim);
  }
}

template <class T>
INGOT_INLINE void load_queries(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work) {
  copy_rows(chunk.rows<T>(p.q), p.q.row_stride, chunk.count, p.key_dim, work.queries, work.key_step);
}
template <class T>
INGOT_INLINE void load_keys(const LinearAttentionProblem& p, const TokenChunk& chunk, float* to, int64_t step) {
  copy_rows(chunk.rows<T>(p.k), p.k.row_stride, chunk.count, p.key_dim, to, step);
}

// The state behind the chunk; `decayed` holds the keys, decayed to its end.
INGOT_INLINE void pass_state(const LinearAttentionProblem& p, const Work& work, int64_t count) {
  decay_channels(p, whole_decay(work, count), work.state);
  add_to_panels(p.key_dim, p.value_dim, count, work.decayed, work.key_step, work.value_panels, work.state);
}

// The queries, decayed from the chunk's start, times the state.
INGOT_INLINE void read_state(const LinearAttentionProblem& p, const Work& work, int64_t count) {
  multiply_rows(work.queries, work.from_start, work.key_step, count, p.key_dim);
  product_of_rows(p.value_dim, p.key_dim, work.queries, work.key_step, work.state, work.result, work.value_step, 1, [&](Range) {
    return Range{0, count};
  });
}

template <class T>
INGOT_INLINE void forward_chunk(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work) {
  const int64_t count = chunk.count;
  load_queries<T>(p, chunk, work);
  load_keys<T>(p, chunk, work.decayed, work.key_step);
  pack_by_row(chunk.rows<T>(p.v), p.v.row_stride, count, count, p.value_dim, work.value_panels);
  make_decays(p, chunk, work);
  make_scores(p, work, count);
  read_state(p, work, count);
  add_product<false>(count, p.value_dim, count, work.scores, kTokenStride, work.value_panels, work.result, work.value_step,
                     [&](Range rows) {
                       return Range{0, rows.end};
                     });
  store_rows(work.result, work.value_step, count, p.value_dim, chunk.rows<T>(p.out), p.out.row_stride);
  pass_state(p, work, count);
}

template <class T>
void forward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  const Work work(p, scratch);
  walk_forward(p, task, work, [&](const TokenChunk& chunk) { forward_chunk<T>(p, chunk, work); });
}

template <class T>
void part_state(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  const Work work(p, scratch);
  walk_state(p, task, work, [&](const TokenChunk& chunk) {
    load_keys<T>(p, chunk, work.decayed, work.key_step);
    pack_by_row(chunk.rows<T>(p.v), p.v.row_stride, chunk.count, chunk.count, p.value_dim, work.value_panels);
    make_decays(p, chunk, work);
    multiply_rows(work.decayed, work.to_end, work.key_step, chunk.count, p.key_dim);
    pass_state(p, work, chunk.count);
  });
}

template <class T>
void add_of_state(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  const int64_t pair = task / p.parts, part = task % p.parts, first = p.first_segment(part);
  const Work work(p, scratch);
  pack_by_row(p.state(pair, first), p.value_dim, p.key_dim, p.key_dim, p.value_dim, work.state);
  for (int64_t at = p.first_chunk(first); at < p.first_chunk(p.first_segment(part + 1)); ++at) {
    const TokenChunk chunk(p, pair, at);
    load_queries<T>(p, chunk, work);
    make_decays(p, chunk, work);
    read_state(p, work, chunk.count);
    copy_rows(chunk.rows<T>(p.out), p.out.row_stride, chunk.count, p.value_dim, work.values, work.value_step);
    for (int64_t i = 0; i < chunk.count * work.value_step; i += kLanes)
      store(work.result + i, load(work.result + i) + load(work.values + i));
    store_rows(work.result, work.value_step, chunk.count, p.value_dim, chunk.rows<T>(p.out), p.out.row_stride);
    decay_channels(p, whole_decay(work, chunk.count), work.state);
  }
}

// S^T behind the chunk from that in front of it.
template <class T>
INGOT_INLINE void pass_state_transposed(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work, const float* before,
                                        float* behind) {
  const int64_t count = chunk.count;
  load_keys<T>(p, chunk, work.keys, work.key_step);
  copy_rows(chunk.rows<T>(p.v), p.v.row_stride, count, p.value_dim, work.values, work.value_step);
  make_decays(p, chunk, work);
  multiply_rows(work.keys, work.to_end, work.key_step, count, p.key_dim);
  decay_channels_transposed(p, whole_decay(work, count), before, behind);
  pack_by_row(work.keys, work.key_step, count, count, p.key_dim, work.key_panels);
  add_to_panels(p.value_dim, p.key_dim, count, work.values, work.value_step, work.key_panels, behind);
}

// dS in front of the chunk; the queries become decayed ones.
INGOT_INLINE void pass_gradient(const LinearAttentionProblem& p, const Work& work, int64_t count) {
  decay_channels(p, whole_decay(work, count), work.grad_state);
  multiply_rows(work.queries, work.from_start, work.key_step, count, p.key_dim);
  add_to_panels(p.key_dim, p.value_dim, count, work.queries, work.key_step, work.value_panels, work.grad_state);
}

// Adds to grad_q and grad_k what pairs give them, and makes `scores` and `passed` [t]: the terms of pairs that pass token t.
INGOT_INLINE void differentiate_pairs(const LinearAttentionProblem& p, const Work& work, int64_t count) {
  const int64_t step = work.key_step;
  clear(work.passed, count * step);
  for (int64_t i = 0; i < count; ++i) {
    const float *query = work.queries + i * step, *gate = work.gates + i * step, *deltas = work.deltas + i * kTokenStride;
    float *const scores = work.scores + i * kTokenStride, *const grad_q = work.grad_q + i * step;
    clear(scores, kTokenColumns);
    for (int64_t d = 0; d < p.key_dim; d += kLanes) {  // column by column: sums over earlier tokens stay in registers
      const Float q = load(query + d), factor = load(gate + d);
      Float sum{};
      for (int64_t j = 0; j < i; ++j) {
        float *const decay = work.decayed + j * step + d, *const passed = work.passed + (j + 1) * step + d;
        float* const grad_k = work.grad_k + j * step + d;
        const Float so_far = load(decay) * factor, key = so_far * load(work.keys + j * step + d);
        const Float delta = broadcast(deltas[j]);
        store(decay, so_far);
        sum += delta * key;
        store(passed, load(passed) + q * sum);
        store(grad_k, load(grad_k) + delta * so_far * q);
      }
      const Float delta = broadcast(deltas[i]), key = load(work.keys + i * step + d);
      float* const grad_k = work.grad_k + i * step + d;
      store(grad_q + d, load(grad_q + d) + sum + delta * key);
      store(grad_k, load(grad_k) + delta * q);
      store(work.decayed + i * step + d, broadcast(1));
    }
    for (int64_t j = 0; j <= i; ++j) {
      Float sum{};
      for (int64_t d = 0; d < p.key_dim; d += kLanes)
        sum += load(query + d) * load(work.decayed + j * step + d) * load(work.keys + j * step + d);
      scores[j] = sum_of_lanes(sum)[0];
    }
  }
}

template <class T>
INGOT_INLINE void backward_chunk(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work, const float* state) {
  const int64_t key_step = work.key_step, value_step = work.value_step, count = chunk.count;
  const auto all_rows = [&](Range) { return Range{0, count}; };
  load_queries<T>(p, chunk, work);
  load_keys<T>(p, chunk, work.keys, key_step);
  copy_rows(chunk.rows<T>(p.v), p.v.row_stride, count, p.value_dim, work.values, value_step);
  copy_rows(chunk.rows<T>(p.grad_out), p.grad_out.row_stride, count, p.value_dim, work.grads, value_step);
  pack_tokens_by_dim(work.values, value_step, count, p.value_dim, work.values_by_dim, kTokenColumns);
  pack_by_row(work.grads, value_step, count, count, p.value_dim, work.value_panels);
  make_decays(p, chunk, work);
  const float* const whole = whole_decay(work, count);
  product_of_rows(kTokenColumns, p.value_dim, work.grads, value_step, work.values_by_dim, work.deltas, kTokenStride, 1, [&](Range tokens) {
    return Range{smaller(tokens.begin, count), count};
  });

  // What reads and writes of states give queries, keys and gates.
  product_of_rows(p.key_dim, p.value_dim, work.grads, value_step, state, work.grad_q, key_step, 1, all_rows);
  product_of_rows(p.key_dim, p.value_dim, work.values, value_step, work.grad_state_transposed, work.grad_k, key_step, 1, all_rows);
  multiply_rows(work.grad_q, work.from_start, key_step, count, p.key_dim);
  multiply_rows(work.grad_k, work.to_end, key_step, count, p.key_dim);
  float* const reads = work.key_panels;  // rows here
  float* const writes = work.result;
  for (int64_t i = 0; i < count * key_step; i += kLanes) {
    store(reads + i, load(work.queries + i) * load(work.grad_q + i));
    store(writes + i, load(work.keys + i) * load(work.grad_k + i));
  }
  differentiate_pairs(p, work, count);
  if (p.grad_channel_gate.data != nullptr) {
    float kept[kLinearLargestDim];
    make_kept(p, work, state, whole, kept);
    store_gate_gradients(p, chunk, work, kept, reads, writes);
  }
  store_rows(work.grad_q, key_step, count, p.key_dim, chunk.rows<T>(p.grad_q), p.grad_q.row_stride);
  store_rows(work.grad_k, key_step, count, p.key_dim, chunk.rows<T>(p.grad_k), p.grad_k.row_stride);

  multiply_rows(work.keys, work.to_end, key_step, count, p.key_dim);
  product_of_rows(p.value_dim, p.key_dim, work.keys, key_step, work.grad_state, work.result, value_step, 1, all_rows);
  add_product<true>(count, p.value_dim, count, work.scores, kTokenStride, work.value_panels, work.result, value_step, [&](Range rows) {
    return Range{rows.begin, count};
  });
  store_rows(work.result, value_step, count, p.value_dim, chunk.rows<T>(p.grad_v), p.grad_v.row_stride);
  pass_gradient(p, work, count);
  transpose_panels(work.grad_state, p.key_dim, p.value_dim, work.grad_state_transposed);
}

template <class T>
void backward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  const Work work(p, scratch);
  walk_backward(
      p, task, work,
      [&](const TokenChunk& chunk, const float* before, float* behind) { pass_state_transposed<T>(p, chunk, work, before, behind); },
      [&](const TokenChunk& chunk, const float* state) { backward_chunk<T>(p, chunk, work, state); });
}

template <class T>
void part_gradient(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  const Work work(p, scratch);
  walk_gradient(p, task, work, [&](const TokenChunk& chunk) {
    load_queries<T>(p, chunk, work);
    pack_by_row(chunk.rows<T>(p.grad_out), p.grad_out.row_stride, chunk.count, chunk.count, p.value_dim, work.value_panels);
    make_decays(p, chunk, work);
    pass_gradient(p, work, chunk.count);
  });
}

}  // namespace

void linear_attention_channels_forward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  of_dtype<forward<float>, forward<bf16>>(p, task, scratch);
}
void linear_attention_channels_part_state(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  of_dtype<part_state<float>, part_state<bf16>>(p, task, scratch);
}
void linear_attention_channels_add_of_state(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  of_dtype<add_of_state<float>, add_of_state<bf16>>(p, task, scratch);
}
void linear_attention_channels_part_gradient(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  of_dtype<part_gradient<float>, part_gradient<bf16>>(p, task, scratch);
}
void linear_attention_channels_backward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  of_dtype<backward<float>, backward<bf16>>(p, task, scratch);
}

int64_t linear_attention_channels_scratch(const LinearAttentionProblem& p) { return Work(p, nullptr).taken; }

}  // namespace ingot::kernels::cpu::INGOT_ISA
