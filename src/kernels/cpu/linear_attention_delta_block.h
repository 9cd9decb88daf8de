// What the kernels of the delta rule share (linear_attention_delta.cpp, linear_attention_kda.cpp): substitution, and the backward pass over
// a row. For the sources that are compiled once per instruction set (isa.h).
#pragma once

#include "kernels/cpu/linear_attention_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {

INGOT_INLINE const float* betas(const LinearAttentionProblem& p, const TokenChunk& chunk) {
  return p.beta + chunk.pair * p.seq + chunk.first;
}

// (I + L) X = rows, with -L strictly below the diagonal in `system`: a block of rows by whole products of what lies before or behind it,
// then row by row. kTransposed: with the transposed system, from the last block on. Solves in place, and leaves the solution in panels,
// too.
template <bool kTransposed>
INGOT_INLINE void substitute(const float* system, int64_t stride, int64_t count, int64_t dim, float* rows, int64_t step, float* panels) {
  const int64_t blocks = (count + kBlockRows - 1) / kBlockRows;
  for (int64_t n = 0; n < blocks; ++n) {
    const int64_t begin = (kTransposed ? blocks - 1 - n : n) * kBlockRows, end = smaller(begin + kBlockRows, count);
    const Range known = kTransposed ? Range{end, count} : Range{0, begin};
    const float* left = kTransposed ? system + known.begin * stride + begin : system + begin * stride;
    for (int64_t column = 0; column < dim && known.begin < known.end; column += kPanel) {
      const bool wide = dim - column > kLanes;
      const float* right = panels + column * count + known.begin * (wide ? kPanel : kLanes);
      block_for<Into::added, kTransposed>(end - begin, wide)(known.end - known.begin, left, stride, right, rows + begin * step + column,
                                                             step, 1);
    }
    for (int64_t at = 0; at < end - begin; ++at) {
      const int64_t i = kTransposed ? end - 1 - at : begin + at;
      const int64_t from = kTransposed ? i + 1 : begin, to = kTransposed ? end : i;
      for (int64_t d = 0; d < dim; d += kLanes) {
        Float sum = load(rows + i * step + d);
        for (int64_t j = from; j < to; ++j)
          sum += load(rows + j * step + d) * (kTransposed ? system[j * stride + i] : system[i * stride + j]);
        store(rows + i * step + d, sum);
        const int64_t panel = round_down(d, kPanel), width = dim - panel > kLanes ? kPanel : kLanes;
        store(panels + panel * count + i * width + (d - panel), sum);
      }
    }
  }
}

// Segment by segment from the end. write(chunk, n, written, errors) makes U and E of the n-th chunk of a segment, both `tokens_size` large,
// from work.state, and pass_state(chunk, n) the state behind it; of_chunk(chunk, n, S^T in front of it, U, E), from the last one on,
// computes gradients.
template <class Work, class Write, class PassState, class OfChunk>
INGOT_INLINE void walk_delta_backward(const LinearAttentionProblem& p, int64_t pair, const Work& work, int64_t tokens_size,
                                      const Write& write, const PassState& pass_state, const OfChunk& of_chunk) {
  clear(work.states, kLinearSegment * work.state_size);
  clear(work.grad_state_transposed, work.state_size);
  pack_by_row(p.grad_state(pair, 0), p.value_dim, p.key_dim, p.key_dim, p.value_dim, work.grad_state);
  transpose_panels(work.grad_state, p.key_dim, p.value_dim, work.grad_state_transposed);
  for (int64_t segment = p.segments(); segment-- > 0;) {
    const int64_t first = p.first_chunk(segment), count = p.first_chunk(segment + 1) - first;
    pack_by_row(p.state(pair, segment), p.value_dim, p.key_dim, p.key_dim, p.value_dim, work.state);
    for (int64_t n = 0; n < count; ++n) {
      const TokenChunk chunk(p, pair, first + n);
      transpose_panels(work.state, p.key_dim, p.value_dim, work.states + n * work.state_size);
      write(chunk, n, work.written + n * tokens_size, work.errors + n * tokens_size);
      if (n + 1 < count) pass_state(chunk, n);
    }
    for (int64_t n = count; n-- > 0;)
      of_chunk(TokenChunk(p, pair, first + n), n, work.states + n * work.state_size, work.written + n * tokens_size,
               work.errors + n * tokens_size);
  }
  unpack(work.grad_state, p.key_dim, p.value_dim, p.grad_initial + pair * p.state_size());
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
