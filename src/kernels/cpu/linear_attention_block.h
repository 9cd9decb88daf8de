// Pieces that the passes of linear attention share: chunks, decays inside one, and states in panels.
// For the sources that are compiled once per instruction set (isa.h).
#pragma once

#include "kernels/cpu/attention_block.h"
#include "kernels/cpu/linear_attention_tiles.h"

namespace ingot::kernels::cpu::INGOT_ISA {

extern const LinearAttentionTiles linear_attention_tiles;
void linear_attention_part_gradient(const LinearAttentionProblem&, int64_t task, float* scratch);
void linear_attention_backward(const LinearAttentionProblem&, int64_t task, float* scratch);
int64_t linear_attention_scratch(const LinearAttentionProblem&);

void linear_attention_channels_part_state(const LinearAttentionProblem&, int64_t task, float* scratch);
void linear_attention_channels_forward(const LinearAttentionProblem&, int64_t task, float* scratch);
void linear_attention_channels_add_of_state(const LinearAttentionProblem&, int64_t task, float* scratch);
void linear_attention_channels_part_gradient(const LinearAttentionProblem&, int64_t task, float* scratch);
void linear_attention_channels_backward(const LinearAttentionProblem&, int64_t task, float* scratch);
int64_t linear_attention_channels_scratch(const LinearAttentionProblem&);

void linear_attention_delta_forward(const LinearAttentionProblem&, int64_t task, float* scratch);
void linear_attention_delta_backward(const LinearAttentionProblem&, int64_t task, float* scratch);
int64_t linear_attention_delta_scratch(const LinearAttentionProblem&);

void linear_attention_kda_forward(const LinearAttentionProblem&, int64_t task, float* scratch);
void linear_attention_kda_backward(const LinearAttentionProblem&, int64_t task, float* scratch);
int64_t linear_attention_kda_scratch(const LinearAttentionProblem&);

using LinearPass = void(const LinearAttentionProblem&, int64_t task, float* scratch);
template <LinearPass kOfFloat, LinearPass kOfBf16>
void of_dtype(const LinearAttentionProblem& p, int64_t task, float* scratch) {
  p.is_bf16 ? kOfBf16(p, task, scratch) : kOfFloat(p, task, scratch);
}

// Hands out a task's work areas one behind the other, and counts them: with a null beginning it only counts.
class Areas {
 public:
  explicit Areas(float* scratch) : begin_(scratch) {}
  INGOT_INLINE float* take(int64_t size) {
    float* const area = begin_ == nullptr ? nullptr : begin_ + taken_;
    taken_ += round_up(size, 16);
    return area;
  }
  template <class... Area>
  INGOT_INLINE void give(int64_t size, Area&... areas) {
    ((areas = take(size)), ...);
  }
  INGOT_INLINE int64_t taken() const { return taken_; }

 private:
  float* begin_;
  int64_t taken_ = 0;
};

static_assert(kLinearChunk % kPanel == 0 && kLinearChunk <= kScoreStride, "whole panels of tokens");

INGOT_INLINE int64_t padded(int64_t dim) { return round_up(dim, 16); }  // to the widest vector

// The tokens of one chunk of one head.
struct TokenChunk {
  int64_t batch, head, pair, first, count;
  TokenChunk(const LinearAttentionProblem& p, int64_t pair_, int64_t chunk)
      : batch(pair_ / p.heads), head(pair_ % p.heads), pair(pair_), first(chunk * p.chunk), count(smaller(p.chunk, p.seq - first)) {}
  template <class T>
  INGOT_INLINE T* rows(const TokenRows& x) const {
    return static_cast<T*>(x.data) + batch * x.batch_stride + first * x.row_stride + head * x.head_stride;
  }
};

// Decays inside a chunk: from its start to each token (whose own gate counts), from a token to the chunk's end, and between tokens.
struct Decays {
  float *from_start, *to_end;  // [kLinearChunk]; 0 behind the last token up to a whole vector
  float* between;              // [kLinearChunk, kScoreStride], 0 above the diagonal as far as blocks of rows reach
  float whole = 1;
  int64_t known = 0;  // tokens of the chunk that they were made for, if all chunks are alike

  explicit Decays(Areas& areas)
      : from_start(areas.take(kLinearChunk)), to_end(areas.take(kLinearChunk)), between(areas.take(kLinearChunk * kScoreStride)) {}

  INGOT_INLINE void make(const LinearAttentionProblem& p, const TokenChunk& chunk, bool with_between) {
    if (known == chunk.count) return;
    const float* gate = p.gate + chunk.pair * p.seq + chunk.first;
    const int64_t count = chunk.count;
    float sum = 0;
    for (int64_t i = 0; i < count; ++i) from_start[i] = sum += gate[i];
    whole = sum;
    sum = 0;
    for (int64_t i = count; i-- > 0; sum += gate[i]) to_end[i] = sum;
    exponentiate(from_start, count);
    exponentiate(to_end, count);
    whole = exp(broadcast(whole))[0];
    if (with_between) make_between(gate, count);
    known = p.same_gates && with_between ? count : 0;
  }

 private:
  INGOT_INLINE static void exponentiate(float* x, int64_t count) {
    for (int64_t i = count; i < round_up(count, kLanes); ++i) x[i] = 0;
    for (int64_t i = 0; i < count; i += kLanes) store(x + i, exp(load(x + i)));
  }

  // Sums of gates from behind each token up to row i grow by row i's gate.
  INGOT_INLINE void make_between(const float* gate, int64_t count) {
    float sums[kLinearChunk] = {};
    for (int64_t i = 0; i < count; ++i) {
      const Float own = broadcast(gate[i]);
      float* const row = between + i * kScoreStride;
      int64_t j = 0;
      for (; j + kLanes <= i; j += kLanes) {
        const Float sum = load(sums + j) + own;
        store(sums + j, sum);
        store(row + j, exp(sum));
      }
      const Float sum = load(sums + j) + (lanes_inside(j, {0, i}) ? own : Float{});
      store(sums + j, sum);
      store(row + j, lanes_inside(j, {0, i + 1}) ? exp(sum) : Float{});
      clear_to_block(row, j + kLanes, i);
    }
  }

 public:
  // Products over the columns of a row take those of its whole block of rows.
  INGOT_INLINE static void clear_to_block(float* row, int64_t from, int64_t i) {
    const int64_t end = round_up(smaller(kLinearChunk, (i / kBlockRows + 1) * kBlockRows), kLanes);
    for (; from < end; from += kLanes) store(row + from, Float{});
  }
};

// Row i of scores in place: decayed, 0 above the diagonal.
INGOT_INLINE void decay_row(float* scores, const float* between, int64_t i) {
  if (between != nullptr) {
    const int64_t end = round_up(smaller(kLinearChunk, (i / kBlockRows + 1) * kBlockRows), kLanes);
    const int64_t last = round_down(i, kLanes) + kLanes;  // what lies behind was not computed
    for (int64_t j = 0; j < last; j += kLanes)
      store(scores + j, lanes_inside(j, {0, i + 1}) ? load(scores + j) * load(between + j) : Float{});
    for (int64_t j = last; j < end; j += kLanes) store(scores + j, Float{});
    return;
  }
  const int64_t j = round_down(i, kLanes);
  store(scores + j, lanes_inside(j, {0, i + 1}) ? load(scores + j) : Float{});
  Decays::clear_to_block(scores, j + kLanes, i);
}

// Pairs of token i and each earlier one, a * b by rows: adds to terms [i] what passes the gate of token i. Rows from the last one
// on; `later` [j] are the sums over them.
INGOT_INLINE void add_pairs(const float* a, const float* b, int64_t i, float* later, float* terms) {
  Float sum{};
  for (int64_t j = 0; j < i; j += kLanes) {
    const Int before = lanes_inside(j, {0, i});
    const Float total = load(later + j) + (before ? load(a + j) * load(b + j) : Float{});
    store(later + j, total);
    sum += before ? total : Float{};
  }
  terms[i] += sum_of_lanes(sum)[0];
}

INGOT_INLINE void scale_rows(float* rows, int64_t step, int64_t count, int64_t dim, const float* factors) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = 0; d < dim; d += kLanes) store(rows + i * step + d, load(rows + i * step + d) * factors[i]);
}

// Matrices [rows, columns] that are right operands of products and change: in panels over columns (tile.h), padded with zeros.
INGOT_INLINE int64_t panels_size(int64_t rows, int64_t columns) { return rows * round_up(columns, kLanes); }

INGOT_INLINE float dot(const float* a, const float* b, int64_t count) {
  Float sum{};
  for (int64_t i = 0; i < count; i += kLanes) sum += load(a + i) * load(b + i);
  return sum_of_lanes(sum)[0];
}

// As dot, over the `count` elements that exist.
INGOT_INLINE float dot_of_rows(const float* a, const float* b, int64_t count) {
  const int64_t whole = round_down(count, kLanes);
  float sum = whole > 0 ? dot(a, b, whole) : 0;
  for (int64_t i = whole; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

INGOT_INLINE void scale(float* x, int64_t count, float factor) {
  for (int64_t i = 0; i < count; i += kLanes) store(x + i, load(x + i) * factor);
}

// C += A^T B, A [depth, rows] of a_step, B in panels of depth.
INGOT_INLINE void add_to_panels(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_step, const float* b, float* c) {
  for (int64_t column = 0; column < columns; column += kPanel) {
    const bool wide = columns - column > kLanes;
    const int64_t width = wide ? kPanel : kLanes;
    for (int64_t row = 0; row < rows; row += kBlockRows)
      block_for<Into::added, true>(smaller(kBlockRows, rows - row), wide)(depth, a + row, a_step, b + column * depth,
                                                                          c + column * rows + row * width, width, 1);
  }
}

// Panels [rows, columns] to a row-major matrix.
INGOT_INLINE void unpack(const float* from, int64_t rows, int64_t columns, float* to) {
  for (int64_t column = 0; column < columns; column += kPanel) {
    const int64_t width = columns - column > kLanes ? kPanel : kLanes, count = smaller(width, columns - column);
    const float* row = from + column * rows;
    for (int64_t r = 0; r < rows; ++r, row += width)
      for (int64_t i = 0; i < count; ++i) to[r * columns + column + i] = row[i];
  }
}

// Rows of `count` tokens, which have whole vectors, to panels over `tokens` (whole panels) as pack_by_dim makes them.
INGOT_INLINE void pack_tokens_by_dim(const float* from, int64_t step, int64_t count, int64_t dim, float* to,
                                     int64_t tokens = kLinearChunk) {
  for (int64_t token = 0; token < tokens; token += kLanes) {
    const int64_t panel = round_down(token, kPanel);
    for (int64_t d = 0; d < dim; d += kLanes)
      transpose_square(from + token * step + d, step, count - token, dim - d, to + panel * dim + d * kPanel + (token - panel), kPanel);
  }
}

// Panels [rows, columns] to panels [columns, rows].
INGOT_INLINE void transpose_panels(const float* from, int64_t rows, int64_t columns, float* to) {
  for (int64_t r = 0; r < rows; r += kLanes) {
    const int64_t panel = round_down(r, kPanel), to_width = rows - panel > kLanes ? kPanel : kLanes;
    for (int64_t c = 0; c < columns; c += kLanes) {
      const int64_t from_panel = round_down(c, kPanel), width = columns - from_panel > kLanes ? kPanel : kLanes;
      transpose_square(from + from_panel * rows + r * width + (c - from_panel), width, rows - r, columns - c,
                       to + panel * columns + c * to_width + (r - panel), to_width);
    }
  }
}

// A row-major matrix [rows, columns] to panels [columns, rows], whose padding is left alone.
INGOT_INLINE void pack_transposed(const float* from, int64_t rows, int64_t columns, float* to) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t panel = round_down(r, kPanel), width = rows - panel > kLanes ? kPanel : kLanes;
    for (int64_t c = 0; c < columns; ++c) to[panel * columns + c * width + (r - panel)] = from[r * columns + c];
  }
}

template <class T>
INGOT_INLINE void store_rows(const float* from, int64_t from_step, int64_t count, int64_t dim, T* to, int64_t to_step) {
  for (int64_t i = 0; i < count; ++i, from += from_step, to += to_step) {
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) store(to + d, load(from + d));
    if (d < dim) store_part(to + d, load(from + d), dim - d);
  }
}

// The passes over one part of a row, whatever a chunk does in them; `work` holds the areas that they name.

// of_chunk(chunk) makes outputs from work.state, and of it the state behind the chunk.
template <class Work, class OfChunk>
INGOT_INLINE void walk_forward(const LinearAttentionProblem& p, int64_t task, const Work& work, const OfChunk& of_chunk) {
  const int64_t pair = task / p.parts, part = task % p.parts, first = p.first_segment(part), end = p.first_segment(part + 1);
  pack_by_row(p.state(pair, first), p.value_dim, p.key_dim, p.key_dim, p.value_dim, work.state);
  for (int64_t segment = first; segment < end; ++segment) {
    if (segment > first) unpack(work.state, p.key_dim, p.value_dim, p.state(pair, segment));
    for (int64_t chunk = p.first_chunk(segment); chunk < p.first_chunk(segment + 1); ++chunk) of_chunk(TokenChunk(p, pair, chunk));
  }
  if (part == p.parts - 1) unpack(work.state, p.key_dim, p.value_dim, p.final_state + pair * p.state_size());
}

// of_chunk(chunk) adds to work.state, which begins as 0.
template <class Work, class OfChunk>
INGOT_INLINE void walk_state(const LinearAttentionProblem& p, int64_t task, const Work& work, const OfChunk& of_chunk) {
  const int64_t pair = task / p.parts, part = task % p.parts, end = p.first_segment(part + 1);
  clear(work.state, panels_size(p.key_dim, p.value_dim));
  for (int64_t at = p.first_chunk(p.first_segment(part)); at < p.first_chunk(end); ++at) of_chunk(TokenChunk(p, pair, at));
  unpack(work.state, p.key_dim, p.value_dim, p.made != nullptr ? p.made_by(task) : p.state(pair, end));
}

// pass_state(chunk, before, behind) makes the state again in which of_chunk(chunk, state), from the last one on, computes gradients.
template <class Work, class PassState, class OfChunk>
INGOT_INLINE void walk_backward(const LinearAttentionProblem& p, int64_t task, const Work& work, const PassState& pass_state,
                                const OfChunk& of_chunk) {
  const int64_t pair = task / p.parts, part = task % p.parts;
  clear(work.states, work.state_size);
  clear(work.grad_state_transposed, work.state_size);
  pack_by_row(p.grad_state(pair, part), p.value_dim, p.key_dim, p.key_dim, p.value_dim, work.grad_state);
  transpose_panels(work.grad_state, p.key_dim, p.value_dim, work.grad_state_transposed);
  for (int64_t segment = p.first_segment(part + 1); segment-- > p.first_segment(part);) {
    const int64_t first = p.first_chunk(segment), end = p.first_chunk(segment + 1);
    const auto state = [&](int64_t chunk) { return work.states + (chunk - first) * work.state_size; };
    pack_transposed(p.state(pair, segment), p.key_dim, p.value_dim, work.states);
    for (int64_t chunk = first; chunk + 1 < end; ++chunk) pass_state(TokenChunk(p, pair, chunk), state(chunk), state(chunk + 1));
    for (int64_t chunk = end; chunk-- > first;) of_chunk(TokenChunk(p, pair, chunk), state(chunk));
  }
  if (part == 0) unpack(work.grad_state, p.key_dim, p.value_dim, p.grad_initial + pair * p.state_size());
}

// of_chunk(chunk), from the last one on, adds to work.grad_state, which begins as 0.
template <class Work, class OfChunk>
INGOT_INLINE void walk_gradient(const LinearAttentionProblem& p, int64_t task, const Work& work, const OfChunk& of_chunk) {
  const int64_t pair = task / p.parts, part = task % p.parts;
  clear(work.grad_state, panels_size(p.key_dim, p.value_dim));
  for (int64_t at = p.first_chunk(p.first_segment(part + 1)); at-- > p.first_chunk(p.first_segment(part));)
    of_chunk(TokenChunk(p, pair, at));
  unpack(work.grad_state, p.key_dim, p.value_dim, p.made != nullptr ? p.made_by(task) : p.grad_state(pair, part - 1));
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
