// Forward pass of linear attention over one part of a row, chunk after chunk: scores inside the chunk, decayed and masked, times
// the values, and the queries times the state in front of it; then the state behind it. The state stays in panels. Keeps the
// states in front of segments. Limit: 2 (chunk + 2 dim) dim operations a token (half the scores are skipped): the multipliers.
#include "kernels/cpu/linear_attention_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

struct Work {
  float *queries, *keys;  // [kLinearChunk, padded(key_dim)]
  float* key_panels;      // panels over tokens, [key_dim, tokens] each
  float* value_panels;    // panels over value_dim, [tokens, value_dim]
  float* out;             // [kLinearChunk, padded(value_dim)]
  float* scores;          // [kLinearChunk, kScoreStride]
  float* state;           // panels [key_dim, value_dim]
  Decays decays;
  Work(const LinearAttentionProblem& p, float* scratch) : Work(p, Areas(scratch)) {}

 private:
  Work(const LinearAttentionProblem& p, Areas areas) : decays(areas) {
    areas.give(kLinearChunk * padded(p.key_dim), queries, keys, key_panels);
    areas.give(kLinearChunk * padded(p.value_dim), value_panels, out);
    scores = areas.take(kLinearChunk * kScoreStride);
    state = areas.take(panels_size(p.key_dim, p.value_dim));
  }
};

// keys and value_panels hold the chunk's; keys are changed.
INGOT_INLINE void pass_state(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work) {
  if (p.gate != nullptr) {
    scale(work.state, panels_size(p.key_dim, p.value_dim), work.decays.whole);
    scale_rows(work.keys, padded(p.key_dim), chunk.count, p.key_dim, work.decays.to_end);
  }
  add_to_panels(p.key_dim, p.value_dim, chunk.count, work.keys, padded(p.key_dim), work.value_panels, work.state);
}

template <class T>
INGOT_INLINE void load_keys_and_values(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work) {
  copy_rows(chunk.rows<T>(p.k), p.k.row_stride, chunk.count, p.key_dim, work.keys, padded(p.key_dim));
  pack_by_row(chunk.rows<T>(p.v), p.v.row_stride, chunk.count, chunk.count, p.value_dim, work.value_panels);
}

template <class T>
INGOT_INLINE void forward_chunk(const LinearAttentionProblem& p, const TokenChunk& chunk, Work& work) {
  const int64_t key_step = padded(p.key_dim), value_step = padded(p.value_dim), count = chunk.count;
  load_keys_and_values<T>(p, chunk, work);
  copy_rows(chunk.rows<T>(p.q), p.q.row_stride, count, p.key_dim, work.queries, key_step);
  pack_tokens_by_dim(work.keys, key_step, count, p.key_dim, work.key_panels);
  product_of_rows(kLinearChunk, p.key_dim, work.queries, key_step, work.key_panels, work.scores, kScoreStride, 1, [&](Range keys) {
    return Range{keys.begin, count};
  });
  if (p.gate != nullptr) {
    work.decays.make(p, chunk, true);
    scale_rows(work.queries, key_step, count, p.key_dim, work.decays.from_start);
  }
  for (int64_t i = 0; i < count; ++i)
    decay_row(work.scores + i * kScoreStride, p.gate != nullptr ? work.decays.between + i * kScoreStride : nullptr, i);
  product_of_rows(p.value_dim, p.key_dim, work.queries, key_step, work.state, work.out, value_step, 1, [&](Range) {
    return Range{0, count};
  });
  add_product<false>(count, p.value_dim, count, work.scores, kScoreStride, work.value_panels, work.out, value_step, [&](Range rows) {
    return Range{0, rows.end};
  });
  store_rows(work.out, value_step, count, p.value_dim, chunk.rows<T>(p.out), p.out.row_stride);
  pass_state(p, chunk, work);
}

template <class T>
void forward(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  Work work(p, scratch);
  walk_forward(p, task, work, [&](const TokenChunk& chunk) { forward_chunk<T>(p, chunk, work); });
}

template <class T>
void part_state(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  Work work(p, scratch);
  walk_state(p, task, work, [&](const TokenChunk& chunk) {
    load_keys_and_values<T>(p, chunk, work);
    if (p.gate != nullptr) work.decays.make(p, chunk, false);
    pass_state(p, chunk, work);
  });
}

template <class T>
void add_of_state(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  const int64_t pair = task / p.parts, part = task % p.parts, first = p.first_segment(part);
  const int64_t key_step = padded(p.key_dim), value_step = padded(p.value_dim);
  Work work(p, scratch);
  pack_by_row(p.state(pair, first), p.value_dim, p.key_dim, p.key_dim, p.value_dim, work.state);
  for (int64_t at = p.first_chunk(first); at < p.first_chunk(p.first_segment(part + 1)); ++at) {
    const TokenChunk chunk(p, pair, at);
    copy_rows(chunk.rows<T>(p.q), p.q.row_stride, chunk.count, p.key_dim, work.queries, key_step);
    if (p.gate != nullptr) {
      work.decays.make(p, chunk, false);
      scale_rows(work.queries, key_step, chunk.count, p.key_dim, work.decays.from_start);
    }
    product_of_rows(p.value_dim, p.key_dim, work.queries, key_step, work.state, work.out, value_step, 1, [&](Range) {
      return Range{0, chunk.count};
    });
    float* const present = work.value_panels;  // rows here
    copy_rows(chunk.rows<T>(p.out), p.out.row_stride, chunk.count, p.value_dim, present, value_step);
    for (int64_t i = 0; i < chunk.count * value_step; i += kLanes) store(work.out + i, load(work.out + i) + load(present + i));
    store_rows(work.out, value_step, chunk.count, p.value_dim, chunk.rows<T>(p.out), p.out.row_stride);
    if (p.gate != nullptr) scale(work.state, panels_size(p.key_dim, p.value_dim), work.decays.whole);
  }
}

}  // namespace

const LinearAttentionTiles linear_attention_tiles = {
    .heads = {.chunk = kLinearChunk,
              .scratch = linear_attention_scratch,
              .part_state = of_dtype<part_state<float>, part_state<bf16>>,
              .forward = of_dtype<forward<float>, forward<bf16>>,
              .add_of_state = of_dtype<add_of_state<float>, add_of_state<bf16>>,
              .part_gradient = linear_attention_part_gradient,
              .backward = linear_attention_backward},
    .channels = {.chunk = kLinearChannelsChunk,
                 .scratch = linear_attention_channels_scratch,
                 .part_state = linear_attention_channels_part_state,
                 .forward = linear_attention_channels_forward,
                 .add_of_state = linear_attention_channels_add_of_state,
                 .part_gradient = linear_attention_channels_part_gradient,
                 .backward = linear_attention_channels_backward},
    .delta = {.chunk = kLinearChunk,
              .scratch = linear_attention_delta_scratch,
              .part_state = nullptr,
              .forward = linear_attention_delta_forward,
              .add_of_state = nullptr,
              .part_gradient = nullptr,
              .backward = linear_attention_delta_backward},
    .kda = {.chunk = kLinearChannelsChunk,
            .scratch = linear_attention_kda_scratch,
            .part_state = nullptr,
            .forward = linear_attention_kda_forward,
            .add_of_state = nullptr,
            .part_gradient = nullptr,
            .backward = linear_attention_kda_backward},
};

}  // namespace ingot::kernels::cpu::INGOT_ISA
