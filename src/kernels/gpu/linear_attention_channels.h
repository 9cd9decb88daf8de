// Linear attention with a gate per channel of keys on a GPU. Between two tokens each channel decays by itself, so that scores are no
// product of q and k. By halves: a chunk is a left and a right half of 32 tokens, these are two halves of 16 each, and so on down to one
// token. A pair of tokens lies in the two halves of exactly one such piece and meets at the border between them: the query decayed from
// there, the key decayed up to there. So there are products of matrices for each of six sizes of halves, and a token's own score besides.
// Decays are products of exponentials of gates, which are at most 0: every factor is between 0 and 1, none is divided and no sums are
// subtracted. A gate of -inf, at the start of a document, is a factor of 0.
//
//   forward   scores     by halves; queries decayed from the chunk's start, keys to its end, and the decay of the whole chunk
//             states, out as without a gate (linear_attention_chunks.h), of decayed queries and keys
//   backward  the same once more, the gradient of scores, gradients of states, grad_v
//             gradients  of q, then of k, by halves, each with its part of the gates' gradient
//
// A gate's gradient is summed over what passes its token: within a half from the reads of this token on, or of the keys before it; of the
// whole chunk, reads of the state in front of it, writes to the one behind it, and what the state keeps.
//
// With the delta rule (linear_attention_delta.h) the products of keys are made as scores are, and their gradients as those of scores.
#pragma once

#include "kernels/gpu/linear_attention_chunks.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

/// A token of a chunk as seen by halves of `half` tokens.
INGOT_DEVICE bool is_right(int token, int half) { return (token & half) != 0; }
/// Whether the pieces of two halves that tokens lie in are the same.
INGOT_DEVICE bool are_together(int a, int b, int half) { return a / (2 * half) == b / (2 * half); }

/// The gates of a chunk and some channels as factors, [kTile tokens, channels] in shared memory. A thread has a channel.
template <int channels>
struct ChannelDecays {
  static constexpr int kRuns = kTileThreads / channels;  // of tokens, that are visited at once
  float* factors;

  INGOT_DEVICE ChannelDecays() {
    INGOT_SHARED_FLOATS(of_tokens, kTile * channels);
    factors = of_tokens;
  }
  /// In shared memory that others have later.
  explicit INGOT_DEVICE ChannelDecays(float* of_tokens) : factors(of_tokens) {}
  static INGOT_DEVICE int channel() { return thread_index() % channels; }
  static INGOT_DEVICE int run() { return thread_index() / channels; }

  /// Without a barrier. Of channels from `first` on; 1 behind tokens and channels.
  INGOT_DEVICE void load(const LinearAttentionProblem& p, const LinearChunk& c, int64_t first) const {
    const float* const gates = c.rows<const float>(p.channel_gate, p) + first + channel();
    const bool is_there = first + channel() < p.key_dim;
    for (int t = run(); t < kTile; t += kRuns)
      factors[t * channels + channel()] = is_there && t < c.count ? exponential(gates[t * p.channel_gate.row_stride]) : 1.0f;
  }
  /// visit(token, decay) of `count` tokens from `first` on: from in front of the first, its own gate included, or to behind the last.
  template <bool is_from_start, class Visit>
  INGOT_DEVICE void visit(int first, int count, const Visit& visit) const {
    float decay = 1;
    for (int n = 0; n < count; ++n) {
      const int t = is_from_start ? first + n : first + count - 1 - n;
      const float factor = factors[t * channels + channel()];
      if constexpr (is_from_start) decay *= factor;
      visit(t, decay);
      if constexpr (!is_from_start) decay *= factor;
    }
  }
  /// right(token, decay from the border) and left(token, decay to the border) of all halves.
  template <class Right, class Left>
  INGOT_DEVICE void visit_halves(int half, const Right& right, const Left& left) const {
    for (int h = run(); h < kTile / half; h += kRuns) {
      if (h % 2 == 1) visit<true>(h * half, half, right);
      else visit<false>(h * half, half, left);
    }
  }
};

/// A channel's elements of a chunk's rows; 0 behind tokens and channels.
struct ChannelOfRows {
  const Bf16* rows;
  int64_t step;
  int count;

  INGOT_DEVICE ChannelOfRows(const HeadRows& x, const LinearAttentionProblem& p, const LinearChunk& c, int64_t channel)
      : rows(c.rows(x, p) + channel), step(x.row_stride), count(channel < p.key_dim ? c.count : 0) {}
  INGOT_DEVICE float at(int token) const { return token < count ? to_float(rows[token * step]) : 0.0f; }
};

/// Of the wave's rows, queries or keys, and the keys before them in the chunk: products, decayed between the two tokens.
struct ProductsByHalves {
  MatrixSum before[kStrips - 1]{}, diagonal{};  // with keys of strips before theirs, and of their own; without the same token's

  /// Of the channels whose decays are loaded. tile: shared memory. All threads come.
  INGOT_DEVICE void add(const ChannelDecays<kTile>& decays, const ChannelOfRows& later, const ChannelOfRows& k, Bf16* tile) {
    INGOT_ROLLED
    for (int half = kTile / 2; half > 0; half /= 2) {
      const auto put = [&](int t, float x) { from_float(x, tile[t * kTileStep + decays.channel()]); };
      decays.visit_halves(
          half, [&](int t, float decay) { put(t, later.at(t) * decay); }, [&](int t, float decay) { put(t, k.at(t) * decay); });
      barrier();
      if (half >= kMatrix) multiply_strips(tile, half / kMatrix);
      else multiply_within_strip(tile + wave_index() * kMatrix * kTileStep, half);
      barrier();  // before the next ones come there
    }
  }
  /// Of strip j, a constant.
  INGOT_DEVICE MatrixSum strip(int j) const {
    const int own = wave_index();
    return j == own ? diagonal : j < kStrips - 1 && j < own ? before[j] : MatrixSum{};
  }

 private:
  // Halves of whole strips: the wave's, if it is in a right half, with those of the left half.
  INGOT_DEVICE void multiply_strips(const Bf16* tile, int strips) {
    const int own = wave_index(), border = own / strips * strips;
    if ((own & strips) == 0) return;
    INGOT_UNROLL
    for (int k = 0; k < kStrips; ++k) {
      const auto a = load_left<Order::by_row>(tile + own * kMatrix * kTileStep + k * kMatrix, kTileStep);
      INGOT_UNROLL
      for (int j = 0; j < kStrips - 1; ++j)
        if (j < border && j >= border - strips)
          multiply(before[j], a, load_right<Order::by_column>(tile + j * kMatrix * kTileStep + k * kMatrix, kTileStep));
    }
  }
  INGOT_DEVICE void multiply_within_strip(const Bf16* strip, int half) {
    MatrixSum all{};
    INGOT_UNROLL
    for (int k = 0; k < kStrips; ++k)
      multiply(all, load_left<Order::by_row>(strip + k * kMatrix, kTileStep), load_right<Order::by_column>(strip + k * kMatrix, kTileStep));
    INGOT_UNROLL
    for (int i = 0; i < kMatrixOfThread; ++i) {
      const int later = MatrixSum::row(i), earlier = MatrixSum::column(i);
      if (is_right(later, half) && !is_right(earlier, half) && are_together(later, earlier, half)) diagonal.at[i] += all.at[i];
    }
  }
};

/// p.scores, p.decayed_q, p.decayed_k and p.whole. A block a chunk.
struct LinearChannelScores {
  static constexpr int kThreads = kTileThreads;
  static constexpr bool kFitsAQuarter = true;
  using Decays = ChannelDecays<kTile>;

  static INGOT_DEVICE void run(const LinearAttentionProblem& p) {
    INGOT_SHARED(Bf16, tile, kTile * kTileStep);  // of each token its decayed query, or its key in a left half
    INGOT_SHARED_FLOATS(same, kTile);
    const LinearChunk c(p, quotient(block_index(), p.chunks), remainder(block_index(), p.chunks));
    const Decays decays;
    const int own = wave_index();
    ProductsByHalves products;
    multiply_same(p, c, same);
    INGOT_ROLLED
    for (int64_t first = 0; first < p.key_dim; first += kTile) {
      decays.load(p, c, first);
      barrier();
      write_decayed(p, c, decays, first);
      const ChannelOfRows q(p.q, p, c, first + decays.channel()), k(p.k, p, c, first + decays.channel());
      products.add(decays, q, k, tile);
    }
    INGOT_UNROLL
    for (int i = 0; i < kMatrixOfThread; ++i)
      if (MatrixSum::row(i) == MatrixSum::column(i)) products.diagonal.at[i] = same[own * kMatrix + MatrixSum::row(i)];
    Bf16* const to = c.scores(p.scores, p) + own * kMatrix * kTile;
    INGOT_UNROLL
    for (int j = 0; j < kStrips; ++j) store(products.strip(j), to + j * kMatrix, kTile);
  }

 private:
  // Of each token its query times its key, which nothing decays.
  static INGOT_DEVICE void multiply_same(const LinearAttentionProblem& p, const LinearChunk& c, float* same) {
    for (int n = 0; n < kMatrix; ++n) {
      const int t = wave_index() * kMatrix + n;
      const Bf16 *const q = c.rows(p.q, p) + t * p.q.row_stride, *const k = c.rows(p.k, p) + t * p.k.row_stride;
      float sum = 0;
      if (t < c.count)
        for (int64_t d = wave_thread(); d < p.key_dim; d += kWave) sum += to_float(q[d]) * to_float(k[d]);
      sum = wave_sum(sum);
      if (wave_thread() == 0) same[t] = sum;
    }
  }

  static INGOT_DEVICE void write_decayed(const LinearAttentionProblem& p, const LinearChunk& c, const Decays& decays, int64_t first) {
    const int64_t channel = first + decays.channel();
    const ChannelOfRows q(p.q, p, c, channel), k(p.k, p, c, channel);
    const auto put = [&](const HeadRows& x, int t, float value) {
      if (t < q.count) from_float(value, (c.rows(x, p) + channel)[t * x.row_stride]);
    };
    if (decays.run() == 0) {
      float whole = 1;
      decays.visit<true>(0, kTile, [&](int t, float decay) {
        put(p.decayed_q, t, q.at(t) * decay);
        whole = decay;
      });
      if (channel < p.key_dim) p.whole[(c.pair * p.chunks + c.chunk) * p.key_dim + channel] = whole;
    } else if (decays.run() == 1) {
      decays.visit<false>(0, kTile, [&](int t, float decay) { put(p.decayed_k, t, k.at(t) * decay); });
    }
  }
};

/// p.grad_scores: grad_out v^T, masked but not decayed. A block a chunk.
struct LinearChannelScoreGradients {
  static constexpr int kThreads = kTileThreads;

  static INGOT_DEVICE void run(const LinearAttentionProblem& p) {
    INGOT_SHARED(Bf16, tiles, 2 * kTile * kTileStep);
    const LinearChunk c(p, quotient(block_index(), p.chunks), remainder(block_index(), p.chunks));
    MatrixSum grads[kStrips]{};
    add_products<true>(p, c, p.grad_out, p.v, p.value_dim, tiles, grads);
    INGOT_UNROLL
    for (int j = 0; j < kStrips; ++j) {
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i)
        if (j * kMatrix + MatrixSum::column(i) > wave_index() * kMatrix + MatrixSum::row(i)) grads[j].at[i] = 0;
      store(grads[j], c.scores(p.grad_scores, p) + wave_index() * kMatrix * kTile + j * kMatrix, kTile);
    }
  }
};

/// grad_q of what right halves read, or grad_k of what left halves are read by; the first writes p.grad_channel_gate, all others add to it.
/// A block some channels of a chunk.
///
///   result  from a half                      from the chunk
///   grad_q  decay (grad_scores decayed k)    decay from the start (grad_out state in front^T)
///   grad_k  decay (grad_scores^T decayed q)  decay to the end (v gradient behind^T)
///
/// of_system: with the delta rule's system in the place of the scores, whose queries are the keys themselves: the problem has k for q and
/// grad_k for grad_q, to which is added, the gradient of (k k^T) for grad_scores, and grad_v, which counts negative, for grad_out. States
/// behind the chunk have no part in it.
template <bool of_q, bool of_system>
struct LinearChannelGradients {
  static constexpr int kThreads = kTileThreads;
  static constexpr bool kFitsAQuarter = true;
  // Of a block: half a tile, as its sums fill the registers.
  static constexpr int kChannels = kTile / 2, kColumns = kChannels / kMatrix;

  static INGOT_DEVICE void run(const LinearAttentionProblem& p) {
    INGOT_SHARED(Bf16, tiles, 2 * kTile * kTileStep);
    // In a half of the result's side, decays, and then the gradient times its q or k; in one of the other side decayed k or q.
    Bf16 *const tile = tiles, *const grad_scores = tiles + kTile * kTileStep;
    const int64_t blocks = (p.key_dim + kChannels - 1) / kChannels, first = remainder(block_index(), blocks) * kChannels;
    const int64_t of_pair = quotient(block_index(), blocks);
    const LinearChunk c(p, quotient(of_pair, p.chunks), remainder(of_pair, p.chunks));
    const ChannelDecays<kChannels> decays;
    MatrixSum grads[kColumns]{}, gates[kColumns]{};
    constexpr bool has_state = of_q || !of_system;
    if constexpr (has_state) add_of_state(p, c, first, tiles, grads);
    decays.load(p, c, first);
    TileOnItsWay scores;
    scores.load(c.scores(p.grad_scores, p), kTile, kTile, kTile);
    scores.store(grad_scores);
    barrier();
    const int channel = decays.channel();
    const auto put = [&](int t, float x) { from_float(x, tile[t * kTileStep + channel]); };
    if constexpr (has_state) {
      if (decays.run() == 0) decays.template visit<of_q>(0, kTile, put);
      barrier();
      INGOT_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        MatrixSum of_state = grads[j];
        if constexpr (of_system)
          for (int i = 0; i < kMatrixOfThread; ++i) of_state.at[i] = -of_state.at[i];
        grads[j] = MatrixSum{};
        add_decayed(p, c, first, j, of_state, kTile, tile, grads[j]);
      }
      barrier();
      add_gates(tile, kTile, gates);
      barrier();
    }

    const ChannelOfRows other(of_q ? p.k : p.q, p, c, first + channel);
    INGOT_ROLLED
    for (int half = kTile / 2; half > 0; half /= 2) {
      const auto put_other = [&](int t, float decay) { put(t, other.at(t) * decay); };
      if constexpr (of_q) decays.visit_halves(half, put, put_other);
      else decays.visit_halves(half, put_other, put);
      barrier();
      const bool has_rows = half < kMatrix || is_own(wave_index() * kMatrix, half);  // on the result's side
      if (has_rows) {
        INGOT_UNROLL
        for (int j = 0; j < kColumns; ++j) add_decayed(p, c, first, j, product(grad_scores, tile, half, j), half, tile, grads[j]);
      }
      barrier();
      if (has_rows) add_gates(tile, half, gates);
      barrier();  // before the next ones come there
    }
    finish(p, c, first, grad_scores, grads, gates);
  }

 private:
  // Whether the token is on the result's side of its piece; the whole chunk is.
  static INGOT_DEVICE bool is_own(int token, int half) { return half == kTile || is_right(token, half) == of_q; }

  // grads += grad_out state^T, or v (gradient behind)^T.
  static INGOT_DEVICE void add_of_state(const LinearAttentionProblem& p, const LinearChunk& c, int64_t first, Bf16* tiles,
                                        MatrixSum (&grads)[kColumns]) {
    const HeadRows& z = of_q ? p.grad_out : p.v;
    const Bf16 *const rows = c.rows(z, p), *const state = c.state(of_q ? p.states : p.grad_states, p) + first * p.value_dim;
    const int64_t channels = p.key_dim - first < kChannels ? p.key_dim - first : kChannels;
    TileOnItsWay next_left, next_right;
    const auto load = [&](int64_t from) {
      next_left.load(rows + from, z.row_stride, c.count, p.value_dim - from);
      next_right.load(state + from, p.value_dim, channels, p.value_dim - from);
    };
    load(0);
    INGOT_ROLLED
    for (int64_t from = 0; from < p.value_dim; from += kTile) {
      next_left.store(tiles);
      next_right.store(tiles + kTile * kTileStep);
      barrier();
      if (from + kTile < p.value_dim) load(from + kTile);
      multiply_tiles<Order::by_row, Order::by_column>(grads, tiles, tiles + kTile * kTileStep);
      barrier();  // before the next ones come there
    }
  }

  // Columns j of the wave's rows: the gradient of scores, or its transpose, times what the other halves have.
  static INGOT_DEVICE MatrixSum product(const Bf16* grad_scores, const Bf16* tile, int half, int j) {
    const int own = wave_index();
    const auto grads_with = [&](int strip) {
      if constexpr (of_q) return load_left<Order::by_row>(grad_scores + own * kMatrix * kTileStep + strip * kMatrix, kTileStep);
      else return load_left<Order::by_column>(grad_scores + strip * kMatrix * kTileStep + own * kMatrix, kTileStep);
    };
    const auto right = [&](int strip) { return load_right<Order::by_row>(tile + strip * kMatrix * kTileStep + j * kMatrix, kTileStep); };
    MatrixSum sums{};
    if (half >= kMatrix) {
      const int strips = half / kMatrix, begin = own / strips * strips + (of_q ? -strips : strips);
      for (int s = begin; s < begin + strips; ++s) multiply(sums, grads_with(s), right(s));
    } else {
      const auto keeps = [&](int row, int column) { return is_own(row, half) && !is_own(column, half) && are_together(row, column, half); };
      multiply(sums, keep_of_left(grads_with(own), keeps), right(own));
    }
    return sums;
  }

  // grads += decayed sums; these times q or k stay in the tile, in the place of the decays.
  static INGOT_DEVICE void add_decayed(const LinearAttentionProblem& p, const LinearChunk& c, int64_t first, int j, const MatrixSum& sums,
                                       int half, Bf16* tile, MatrixSum& grads) {
    const HeadRows& x = of_q ? p.q : p.k;
    const Bf16* const rows = c.rows(x, p) + first;
    INGOT_UNROLL
    for (int i = 0; i < kMatrixOfThread; ++i) {
      const int token = wave_index() * kMatrix + MatrixSum::row(i), channel = j * kMatrix + MatrixSum::column(i);
      if (!is_own(token, half)) continue;
      Bf16& at = tile[token * kTileStep + channel];
      const float decayed = sums.at[i] * to_float(at);
      grads.at[i] += decayed;
      const bool is_there = token < c.count && first + channel < p.key_dim;
      from_float(is_there ? decayed * to_float(rows[token * x.row_stride + channel]) : 0.0f, at);
    }
  }

  // gates += of each token the sum over its half, of_q: from the token on, else before it.
  static INGOT_DEVICE void add_gates(const Bf16* tile, int half, MatrixSum (&gates)[kColumns]) {
    const int own = wave_index(), strips = half < kMatrix ? 1 : half / kMatrix, begin = own / strips * strips;
    INGOT_ROLLED
    for (int s = of_q ? own : begin; s < (of_q ? begin + strips : own + 1); ++s) {
      const auto a = keep_of_left(ones_of_left(), [&](int row, int column) {
        if (s != own) return true;
        const bool is_summed = of_q ? column >= row : column < row;
        return is_summed && is_own(own * kMatrix + row, half) && row / half == column / half;
      });
      INGOT_UNROLL
      for (int j = 0; j < kColumns; ++j)
        multiply(gates[j], a, load_right<Order::by_row>(tile + s * kMatrix * kTileStep + j * kMatrix, kTileStep));
    }
  }

  // Adds what a token's own score gives, which no gate passes, and to the gates what the state keeps.
  static INGOT_DEVICE void finish(const LinearAttentionProblem& p, const LinearChunk& c, int64_t first, const Bf16* grad_scores,
                                  MatrixSum (&grads)[kColumns], const MatrixSum (&gates)[kColumns]) {
    const HeadRows &other = of_q ? p.k : p.q, &made = of_q ? p.grad_q : p.grad_k;
    const Bf16* const rows = c.rows(other, p) + first;
    float* const grad_gates = c.rows<float>(p.grad_channel_gate, p) + first;
    const int row = wave_index() * kMatrix;
    Bf16* const to = c.rows(made, p) + row * made.row_stride + first;
    INGOT_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      if (first + j * kMatrix >= p.key_dim) continue;
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i) {
        const int token = row + MatrixSum::row(i), channel = j * kMatrix + MatrixSum::column(i);
        if (token >= c.count) continue;
        grads[j].at[i] += to_float(grad_scores[token * kTileStep + token]) * to_float(rows[token * other.row_stride + channel]);
        if constexpr (of_system) grads[j].at[i] += to_float(to[MatrixSum::row(i) * made.row_stride + channel]);
        float& gate = grad_gates[token * p.grad_channel_gate.row_stride + channel];
        if constexpr (of_system) gate += gates[j].at[i];
        else if constexpr (of_q) gate = gates[j].at[i];
        else gate += gates[j].at[i] + kept(p, c, first + channel);
      }
      store(grads[j], to + j * kMatrix, made.row_stride, c.count - row);
    }
  }
  static INGOT_DEVICE float kept(const LinearAttentionProblem& p, const LinearChunk& c, int64_t channel) {
    float sum = 0;
    for (int64_t part = 0; part < p.kept_parts; ++part)
      sum += p.kept[((part * p.pairs + c.pair) * p.chunks + c.chunk) * p.key_dim + channel];
    return sum;
  }
};

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
