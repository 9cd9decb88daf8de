// What the kernels with a gate per channel share (linear_attention_channels.cpp, linear_attention_kda.cpp): factors of a chunk's gates,
// states that channels decay, and a gate's gradient. `Work` has the areas gates, from_start, to_end and passed, rows [chunk, key_step], and
// dS^T in grad_state_transposed, panels [value_dim, key_dim]. For the sources that are compiled once per instruction set (isa.h).
#pragma once

#include "kernels/cpu/linear_attention_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {

inline constexpr int64_t kTokenColumns = (kLinearChannelsChunk + 31) / 32 * 32;  // tokens as columns: whole panels
inline constexpr int64_t kTokenStride = kTokenColumns + 16;                      // of a row of scores

// What the chunk's gates are as factors, and their products. Padding decays nothing.
template <class Work>
INGOT_INLINE void make_decays(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work) {
  const int64_t step = work.key_step, count = chunk.count;
  const auto* gate = chunk.rows<const float>(p.channel_gate);
  const bool* is_start = p.is_start != nullptr ? p.is_start + chunk.batch * p.seq + chunk.first : nullptr;
  for (int64_t i = 0; i < count; ++i, gate += p.channel_gate.row_stride) {
    float *const own = work.gates + i * step, *const so_far = work.from_start + i * step;
    for (int64_t d = 0; d < p.key_dim; d += kLanes) {
      const Float log = p.key_dim - d >= kLanes ? load(gate + d) : load_part(gate + d, p.key_dim - d);
      const Float factor = is_start != nullptr && is_start[i] ? Float{} : exp(log);
      store(own + d, factor);
      store(so_far + d, i == 0 ? factor : load(so_far - step + d) * factor);
    }
  }
  for (int64_t d = 0; d < p.key_dim; d += kLanes) {
    Float after = broadcast(1);
    for (int64_t i = count; i-- > 0;) {
      store(work.to_end + i * step + d, after);
      after *= load(work.gates + i * step + d);
    }
  }
}

template <class Work>
INGOT_INLINE const float* whole_decay(const Work& work, int64_t count) {
  return work.from_start + (count - 1) * work.key_step;
}

// x *= y, rows of the keys' step.
INGOT_INLINE void multiply_rows(float* x, const float* y, int64_t step, int64_t count, int64_t dim) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = 0; d < dim; d += kLanes) store(x + i * step + d, load(x + i * step + d) * load(y + i * step + d));
}

// Panels [key_dim, columns]: each row decayed by its channel.
INGOT_INLINE void decay_channels(const LinearAttentionProblem& p, const float* whole, float* state) {
  for (int64_t column = 0; column < p.value_dim; column += kPanel) {
    const int64_t width = p.value_dim - column > kLanes ? kPanel : kLanes;
    float* row = state + column * p.key_dim;
    for (int64_t d = 0; d < p.key_dim; ++d)
      for (const float* end = row + width; row < end; row += kLanes) store(row, load(row) * whole[d]);
  }
}

// kept [channel]: the chunk's decay times the sum of S dS over values, both in panels of their transposes.
template <class Work>
INGOT_INLINE void make_kept(const LinearAttentionProblem& p, const Work& work, const float* state, const float* whole, float* kept) {
  for (int64_t column = 0; column < p.key_dim; column += kPanel) {
    const int64_t width = p.key_dim - column > kLanes ? kPanel : kLanes;
    for (int64_t at = 0; at < width; at += kLanes) {
      Float sum{};
      for (int64_t i = column * p.value_dim + at; i < (column + width) * p.value_dim; i += width)
        sum += load(state + i) * load(work.grad_state_transposed + i);
      store(kept + column + at, sum * load(whole + column + at));
    }
  }
}

// Of token t: pairs that pass it, `kept`, writes of earlier tokens, reads of it and later ones; by channel.
template <class Work>
INGOT_INLINE void store_gate_gradients(const LinearAttentionProblem& p, const TokenChunk& chunk, const Work& work, const float* kept,
                                       const float* reads, const float* writes) {
  const int64_t step = work.key_step, count = chunk.count;
  auto* const to = chunk.rows<float>(p.grad_channel_gate);
  for (int64_t d = 0; d < p.key_dim; d += kLanes) {
    Float before = load(kept + d);
    for (int64_t i = 0; i < count; ++i) {
      float* const passed = work.passed + i * step + d;
      store(passed, load(passed) + before);
      before += load(writes + i * step + d);
    }
    Float later{};
    for (int64_t i = count; i-- > 0;) {
      later += load(reads + i * step + d);
      float* const row = to + i * p.grad_channel_gate.row_stride + d;
      const Float sum = load(work.passed + i * step + d) + later;
      p.key_dim - d >= kLanes ? store(row, sum) : store_part(row, sum, p.key_dim - d);
    }
  }
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
