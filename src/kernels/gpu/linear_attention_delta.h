// Linear attention by the delta rule on a GPU, with a gate per head, per channel or none. In the WY form (Yang et al. 2024, arXiv
// 2406.06484 §3, with gates 2412.06464), solved for the residuals R of a chunk's tokens, which write U = beta R into the state:
//   (I + P beta) R = v - (decayed k) S    with P = (k k^T) decayed, strictly below the diagonal
// With T = (I + P beta)^-1: R = T v - W S and W = T (decayed k). Nothing is divided by beta, which may be 0.
//
//   forward   system     of each chunk: T, by substitution in fp32
//             products   W and T v
//             states     chunk after chunk, a block all keys and a strip of values, as W S needs all keys; makes R and U
//             scores and out as without the delta rule, with U for v (linear_attention_chunks.h)
//   backward  the same once more, then from the last chunk on gradients of states dS, and dU = scores^T grad_out + (k to the end) dS
//             products   Y = T^T beta dU, which is grad_v, and grad_q
//             system     with H = Y R^T below the diagonal: grad_beta [i] = R dU - the sum over j of (P H) [j, i],
//                        d(k k^T) [j, i] = -H [j, i] beta [i] decayed, and gates get -(P H) [j, i] beta [i]
//             grad_k     d(k k^T), both ways, times k, less decayed Y S^T; the rest with U for v
// dS in front of a chunk gets - W^T beta dU.
//
// With a gate per channel P is made by halves, as scores are (linear_attention_channels.h), and d P = -H [j, i] beta [i] gives gradients to
// keys and gates as the gradient of scores does.
//
// Limit: W, R, U and dU go through memory once more than without the delta rule, and a sequence is not cut into parts. T, R and dU are
// rounded to bf16: where the keys of a chunk are all but the same and beta is near 1, grad_v and grad_beta are differences of nearly equal
// numbers and are off by 2 to 5 per cent.
#pragma once

#include "kernels/gpu/linear_attention_channels.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

/// p.inverse, T; p.products, P, where that is asked for; with a gate per channel p.k_from_start. A block a chunk.
template <LinearGate gate>
struct LinearSystem {
  static constexpr int kThreads = kTileThreads, kStep = kTile + 1, kBlock = kMatrix * kMatrix;
  static constexpr bool kFitsAQuarter = true, has_gate = gate == LinearGate::of_heads;

  static INGOT_DEVICE void run(const LinearAttentionProblem& p) {
    // P beta below the diagonal; above it T, transposed, without its ones. The keys before, or the channels' decays.
    INGOT_SHARED_FLOATS(square, kTile * kStep);
    INGOT_SHARED_FLOATS(betas, kTile);
    const LinearChunk c(p, quotient(block_index(), p.chunks), remainder(block_index(), p.chunks));
    MatrixSum products[kStrips]{};
    if constexpr (gate == LinearGate::of_channels) multiply_by_halves(p, c, square, products);
    else multiply_keys(p, c, reinterpret_cast<Bf16*>(square), products);
    const ChunkDecays<true> decays;
    if constexpr (has_gate) decays.make(c.gate(p));
    if (thread_index() < kTile) betas[thread_index()] = c.beta(p);
    barrier();
    const int own = wave_index();
    INGOT_UNROLL
    for (int j = 0; j < kStrips; ++j) {
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i) {
        const int later = own * kMatrix + MatrixSum::row(i), earlier = j * kMatrix + MatrixSum::column(i);
        if (earlier >= later) {
          products[j].at[i] = 0;
          continue;
        }
        if constexpr (has_gate) products[j].at[i] *= decays.between(own, later, j, earlier);
        square[later * kStep + earlier] = products[j].at[i] * betas[earlier];
      }
      if (p.products != nullptr) store(products[j], c.scores(p.products, p) + own * kMatrix * kTile + j * kMatrix, kTile);
    }
    barrier();
    invert_diagonal(square);
    barrier();
    invert_below(square);
    Bf16* const to = c.scores(p.inverse, p);
    for (int i = thread_index(); i < kTile * kTile; i += kTileThreads) from_float(inverse(square, i / kTile, i % kTile), to[i]);
  }

 private:
  static INGOT_DEVICE void multiply_keys(const LinearAttentionProblem& p, const LinearChunk& c, Bf16* tile,
                                         MatrixSum (&products)[kStrips]) {
    TileOnItsWay next;
    const Bf16* const rows = c.rows(p.k, p);
    next.load(rows, p.k.row_stride, c.count, p.key_dim);
    INGOT_ROLLED
    for (int64_t from = 0; from < p.key_dim; from += kTile) {
      next.store(tile);
      barrier();
      if (from + kTile < p.key_dim) next.load(rows + from + kTile, p.k.row_stride, c.count, p.key_dim - from - kTile);
      multiply_tiles<Order::by_row, Order::by_column>(products, tile, tile, 0, kStrips, wave_index() + 1);
      barrier();  // before the next ones come there
    }
  }
  static INGOT_DEVICE void multiply_by_halves(const LinearAttentionProblem& p, const LinearChunk& c, float* factors,
                                              MatrixSum (&products)[kStrips]) {
    INGOT_SHARED(Bf16, tile, kTile * kTileStep);
    const ChannelDecays<kTile> decays(factors);
    ProductsByHalves sums;
    INGOT_ROLLED
    for (int64_t first = 0; first < p.key_dim; first += kTile) {
      decays.load(p, c, first);
      barrier();
      const int64_t channel = first + decays.channel();
      const ChannelOfRows k(p.k, p, c, channel);
      if (decays.run() == 0) {
        Bf16* const to = c.rows(p.k_from_start, p) + channel;
        decays.visit<true>(0, k.count, [&](int t, float decay) { from_float(k.at(t) * decay, to[t * p.k_from_start.row_stride]); });
      }
      sums.add(decays, k, k, tile);
    }
    INGOT_UNROLL
    for (int j = 0; j < kStrips; ++j) products[j] = sums.strip(j);
  }

  static INGOT_DEVICE float inverse(const float* square, int row, int column) {
    return row == column ? 1.0f : row > column ? square[column * kStep + row] : 0.0f;
  }
  // Of the matrices on the diagonal, a thread a column.
  static INGOT_DEVICE void invert_diagonal(float* square) {
    const int column = thread_index(), end = (column / kMatrix + 1) * kMatrix;
    if (column >= kTile) return;
    for (int row = column + 1; row < end; ++row) {
      float sum = square[row * kStep + column];
      for (int k = column + 1; k < row; ++k) sum += square[row * kStep + k] * square[column * kStep + k];
      square[column * kStep + row] = -sum;
    }
  }
  // Those below, from near the diagonal on: T [s, r] = -T [s, s] (the sum over m from r to before s of (P beta) [s, m] T [m, r]).
  static INGOT_DEVICE void invert_below(float* square) {
    INGOT_SHARED_FLOATS(sums, (kStrips - 1) * kBlock);
    for (int distance = 1; distance < kStrips; ++distance) {
      const int count = (kStrips - distance) * kBlock;
      for (int i = thread_index(); i < count; i += kTileThreads) {
        const int first = i / kBlock * kMatrix, row = first + distance * kMatrix + i % kBlock / kMatrix, column = first + i % kMatrix;
        float sum = 0;
        for (int k = first; k < first + distance * kMatrix; ++k) sum += square[row * kStep + k] * inverse(square, k, column);
        sums[i] = sum;
      }
      barrier();
      for (int i = thread_index(); i < count; i += kTileThreads) {
        const int block = i / kBlock, row = i % kBlock / kMatrix, column = i % kMatrix, first = (block + distance) * kMatrix;
        float sum = sums[i];
        for (int k = 0; k < row; ++k) sum += inverse(square, first + row, first + k) * sums[block * kBlock + k * kMatrix + column];
        square[(block * kMatrix + column) * kStep + first + row] = -sum;
      }
      barrier();
    }
  }
};

enum class LinearSolve { keys, values, grad_written, grad_v };

/// A tile of columns of a chunk's weights times rows.
///
///   what          weights   rows                      result
///   keys          T         k decayed from the start  p.solved_k, W
///   values        T         v                         p.residuals, less what they are of the state
///   grad_written  scores^T  grad_out                  p.grad_written, less what it is of the state's gradient
///   grad_v        T^T       beta dU                   p.grad_v
template <LinearGate gate, LinearSolve what>
struct LinearSolved {
  static constexpr int kThreads = kTileThreads;
  static constexpr bool kFitsAQuarter = true, has_gate = gate == LinearGate::of_heads, is_by_channel = gate == LinearGate::of_channels;
  static constexpr bool has_keys = what == LinearSolve::keys,
                        is_transposed = what == LinearSolve::grad_written || what == LinearSolve::grad_v;

  static INGOT_DEVICE void run(const LinearAttentionProblem& p) {
    INGOT_SHARED(Bf16, tiles, 2 * kTile * kTileStep);
    INGOT_SHARED_FLOATS(betas, kTile);
    Bf16 *const left = tiles, *const right = tiles + kTile * kTileStep;
    const int64_t columns = has_keys ? p.key_dim : p.value_dim, column_tiles = has_keys ? p.key_tiles : p.value_tiles;
    const int64_t column = remainder(block_index(), column_tiles) * kTile, of_pair = quotient(block_index(), column_tiles);
    const LinearChunk c(p, quotient(of_pair, p.chunks), remainder(of_pair, p.chunks));
    const HeadRows& from = has_keys && is_by_channel           ? p.k_from_start
                           : has_keys                          ? p.k
                           : what == LinearSolve::values       ? p.v
                           : what == LinearSolve::grad_written ? p.grad_out
                                                               : p.grad_written;
    const HeadRows& made = has_keys                            ? p.solved_k
                           : what == LinearSolve::values       ? p.residuals
                           : what == LinearSolve::grad_written ? p.grad_written
                                                               : p.grad_v;
    TileOnItsWay weights, rows;
    weights.load(c.scores(what == LinearSolve::grad_written ? p.scores : p.inverse, p), kTile, kTile, kTile);
    rows.load(c.rows(from, p) + column, from.row_stride, c.count, columns - column);
    weights.store(left);
    const ChunkDecays<false> decays;
    if constexpr (has_keys && has_gate) {
      decays.make(c.gate(p));
      rows.store(right, decays.from_start);
    } else if constexpr (what == LinearSolve::grad_v) {
      if (thread_index() < kTile) betas[thread_index()] = c.beta(p);
      barrier();
      rows.store(right, betas);
    } else rows.store(right);
    barrier();
    MatrixSum sums[kStrips]{};
    if constexpr (is_transposed) multiply_tiles<Order::by_column, Order::by_row>(sums, left, right, wave_index(), kStrips);
    else multiply_tiles<Order::by_row, Order::by_row>(sums, left, right, 0, wave_index() + 1);
    const int first = wave_index() * kMatrix;
    Bf16* const to = c.rows(made, p) + first * made.row_stride + column;
    INGOT_UNROLL
    for (int j = 0; j < kStrips; ++j)
      if (column + j * kMatrix < columns) store(sums[j], to + j * kMatrix, made.row_stride, c.count - first);
  }
};

/// States in front of chunks, with p.residuals and p.written, R and U; or from the last chunk on gradients behind them, with
/// p.grad_written, dU. A block all keys and kMatrix values; a wave of each tile of keys a strip.
template <LinearGate gate, bool is_gradient>
struct LinearDeltaStates {
  static constexpr int kThreads = kTileThreads, kTiles = 4, kStep = kMatrix + 8;  // kTiles: up to 256 keys
  static constexpr bool kFitsAQuarter = true, has_gate = gate == LinearGate::of_heads, is_by_channel = gate == LinearGate::of_channels;

  static INGOT_DEVICE void run(const LinearAttentionProblem& p) {
    INGOT_SHARED(Bf16, tile, kTile * kTileStep);
    INGOT_SHARED(Bf16, state, kTiles * kTile * kStep);
    INGOT_SHARED(Bf16, written, kTile * kStep);   // U; backward -beta dU
    INGOT_SHARED(Bf16, grad_out, kTile * kStep);  // backward
    INGOT_SHARED_FLOATS(betas, kTile);
    const int64_t strips = quotient(p.value_dim, kMatrix), strip = remainder(block_index(), strips), pair = quotient(block_index(), strips),
                  column = strip * kMatrix;
    MatrixSum sums[kTiles]{};
    start(p, pair, column, sums);
    const ChunkDecays<false> decays;
    INGOT_ROLLED
    for (int64_t n = 0; n < p.chunks; ++n) {
      const LinearChunk c(p, pair, is_gradient ? p.chunks - 1 - n : n);
      if constexpr (has_gate) decays.make(c.gate(p));
      if (thread_index() < kTile) betas[thread_index()] = c.beta(p);
      Bf16* const to = c.state(is_gradient ? p.grad_states : p.states, p) + column;
      INGOT_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        if (t >= p.key_tiles) continue;
        const int key = t * kTile + wave_index() * kMatrix;
        store(sums[t], state + key * kStep, kStep);
        if (key < p.key_dim) store(sums[t], to + key * p.value_dim, p.value_dim);
      }
      if constexpr (is_gradient) {
        load_grad_out(p, c, column, grad_out);
        if constexpr (is_by_channel) write_kept_by_channel(p, c, strip, sums);
        else if (p.grad_gate != nullptr) write_kept(p, c, strip, sums, has_gate ? decays.whole() : 1.0f);
      }
      barrier();
      MatrixSum made{};
      const HeadRows &to_end = is_by_channel ? p.decayed_k : p.k, &from_start = is_by_channel ? p.decayed_q : p.q;
      for_each_tile(p, c, is_gradient ? to_end : p.solved_k, has_gate && is_gradient ? decays.to_end : nullptr, tile, [&](int t) {
        INGOT_UNROLL
        for (int k = 0; k < kStrips; ++k)
          multiply(made, load_left<Order::by_row>(tile + wave_index() * kMatrix * kTileStep + k * kMatrix, kTileStep),
                   load_right<Order::by_row>(state + (t * kTile + k * kMatrix) * kStep, kStep));
      });
      write(p, c, column, betas, made, written);
      barrier();
      if constexpr (has_gate) {
        INGOT_UNROLL
        for (int t = 0; t < kTiles; ++t)
          for (int i = 0; i < kMatrixOfThread; ++i) sums[t].at[i] *= decays.whole();
      } else if constexpr (is_by_channel) decay_by_channel(p, c, sums);
      add(p, c, is_gradient ? from_start : to_end,
          !has_gate     ? nullptr
          : is_gradient ? decays.from_start
                        : decays.to_end,
          tile, is_gradient ? grad_out : written, sums);
      if constexpr (is_gradient) add(p, c, p.solved_k, nullptr, tile, written, sums);
    }
    float* const last = is_gradient ? p.grad_initial : p.final_state;
    if (last != nullptr) for_each(p, pair, column, [&](int t, int i, int64_t offset) { last[offset] = sums[t].at[i]; });
  }

 private:
  /// visit(t, i, where the element is in states) of the thread's.
  template <class Visit>
  static INGOT_DEVICE void for_each(const LinearAttentionProblem& p, int64_t pair, int64_t column, const Visit& visit) {
    INGOT_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const int64_t key = t * kTile + wave_index() * kMatrix;
      if (key >= p.key_dim) continue;
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i)
        visit(t, i, (pair * p.key_dim + key + MatrixSum::row(i)) * p.value_dim + column + MatrixSum::column(i));
    }
  }
  static INGOT_DEVICE void start(const LinearAttentionProblem& p, int64_t pair, int64_t column, MatrixSum (&sums)[kTiles]) {
    const bool is_saved = !is_gradient && p.final_state == nullptr;
    const float* const given = is_gradient ? p.grad_final : is_saved ? p.saved : p.initial_state;
    if (given != nullptr) for_each(p, pair, column, [&](int t, int i, int64_t offset) { sums[t].at[i] = given[offset]; });
    if (!is_gradient && !is_saved) for_each(p, pair, column, [&](int t, int i, int64_t offset) { p.saved[offset] = sums[t].at[i]; });
  }

  /// use(t) while tile t of the rows, with a factor for each, is in shared memory.
  template <class Use>
  static INGOT_DEVICE void for_each_tile(const LinearAttentionProblem& p, const LinearChunk& c, const HeadRows& x, const float* factors,
                                         Bf16* tile, const Use& use) {
    const Bf16* const rows = c.rows(x, p);
    TileOnItsWay next;
    next.load(rows, x.row_stride, c.count, p.key_dim);
    INGOT_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      if (t >= p.key_tiles) continue;
      if (factors != nullptr) next.store(tile, factors);
      else next.store(tile);
      barrier();
      if (t + 1 < p.key_tiles) next.load(rows + (t + 1) * kTile, x.row_stride, c.count, p.key_dim - (t + 1) * kTile);
      use(t);
      barrier();  // before the next ones come there
    }
  }
  /// sums += the rows, transposed, times `right`.
  static INGOT_DEVICE void add(const LinearAttentionProblem& p, const LinearChunk& c, const HeadRows& x, const float* factors, Bf16* tile,
                               const Bf16* right, MatrixSum (&sums)[kTiles]) {
    for_each_tile(p, c, x, factors, tile, [&](int t) {
      INGOT_UNROLL
      for (int k = 0; k < kStrips; ++k)
        multiply(sums[t], load_left<Order::by_column>(tile + k * kMatrix * kTileStep + wave_index() * kMatrix, kTileStep),
                 load_right<Order::by_row>(right + k * kMatrix * kStep, kStep));
    });
  }

  static INGOT_DEVICE void load_grad_out(const LinearAttentionProblem& p, const LinearChunk& c, int64_t column, Bf16* to) {
    using V = Vector<Bf16, 8>;
    const Bf16* const rows = c.rows(p.grad_out, p) + column;
    const int row = thread_index() / 2, first = thread_index() % 2 * 8;
    if (row < kTile)
      *reinterpret_cast<V*>(to + row * kStep + first) =
          row < c.count ? *reinterpret_cast<const V*>(rows + row * p.grad_out.row_stride + first) : V{};
  }

  // Of the wave's tokens and the block's values. made: W S; backward (k to the end) dS.
  static INGOT_DEVICE void write(const LinearAttentionProblem& p, const LinearChunk& c, int64_t column, const float* betas,
                                 const MatrixSum& made, Bf16* written) {
    const HeadRows& x = is_gradient ? p.grad_written : p.residuals;
    const int first = wave_index() * kMatrix;
    Bf16* const rows = c.rows(x, p) + first * x.row_stride + column;
    MatrixSum own, times_beta;
    INGOT_UNROLL
    for (int i = 0; i < kMatrixOfThread; ++i) {
      const int row = MatrixSum::row(i);
      const float given = first + row < c.count ? to_float(rows[row * x.row_stride + MatrixSum::column(i)]) : 0.0f;
      own.at[i] = is_gradient ? given + made.at[i] : given - made.at[i];
      times_beta.at[i] = (is_gradient ? -betas[first + row] : betas[first + row]) * own.at[i];
    }
    store(own, rows, x.row_stride, c.count - first);
    store(times_beta, written + first * kStep, kStep);
    if constexpr (!is_gradient)
      store(times_beta, c.rows(p.written, p) + first * p.written.row_stride + column, p.written.row_stride, c.count - first);
  }

  static INGOT_DEVICE void decay_by_channel(const LinearAttentionProblem& p, const LinearChunk& c, MatrixSum (&sums)[kTiles]) {
    const float* const whole = p.whole + (c.pair * p.chunks + c.chunk) * p.key_dim;
    INGOT_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const int key = t * kTile + wave_index() * kMatrix;
      if (key >= p.key_dim) continue;
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i) sums[t].at[i] *= whole[key + MatrixSum::row(i)];
    }
  }
  static INGOT_DEVICE void write_kept_by_channel(const LinearAttentionProblem& p, const LinearChunk& c, int64_t strip,
                                                 const MatrixSum (&sums)[kTiles]) {
    const float* const whole = p.whole + (c.pair * p.chunks + c.chunk) * p.key_dim;
    const Bf16* const before = c.state(p.states, p) + strip * kMatrix;
    float* const to = p.kept + ((strip * p.pairs + c.pair) * p.chunks + c.chunk) * p.key_dim;
    INGOT_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const int key = t * kTile + wave_index() * kMatrix;
      if (key >= p.key_dim) continue;
      float kept[kMatrixRowsOfThread]{};
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i)
        kept[MatrixSum::row_of_thread(i)] +=
            sums[t].at[i] * to_float(before[(key + MatrixSum::row(i)) * p.value_dim + MatrixSum::column(i)]);
      INGOT_UNROLL
      for (int r = 0; r < kMatrixRowsOfThread; ++r) kept[r] = sum_over_columns(kept[r]);
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i)
        if (MatrixSum::column(i) == 0) to[key + MatrixSum::row(i)] = whole[key + MatrixSum::row(i)] * kept[MatrixSum::row_of_thread(i)];
    }
  }

  // What the gates of the whole chunk have to do with the state that passes it.
  static INGOT_DEVICE void write_kept(const LinearAttentionProblem& p, const LinearChunk& c, int64_t strip, const MatrixSum (&sums)[kTiles],
                                      float whole) {
    const Bf16* const before = reinterpret_cast<const Bf16*>(p.states);
    float sum = 0;
    for_each(p, c.pair * p.chunks + c.chunk, strip * kMatrix,
             [&](int t, int i, int64_t offset) { sum += sums[t].at[i] * to_float(before[offset]); });
    sum = whole * wave_sum(sum);
    if (wave_thread() == 0) p.kept[(c.pair * p.chunks + c.chunk) * p.kept_parts + strip * kStrips + wave_index()] = sum;
  }
};

/// p.grad_products, d(k k^T) and its transpose, p.grad_beta, and adds to p.gate_of_scores. A block a chunk.
template <bool has_gate>
struct LinearSystemGradients {
  static constexpr int kThreads = kTileThreads;
  static constexpr bool kFitsAQuarter = true;

  static INGOT_DEVICE void run(const LinearAttentionProblem& p) {
    INGOT_SHARED(Bf16, tiles, 2 * kTile * kTileStep);
    INGOT_SHARED_FLOATS(betas, kTile);
    INGOT_SHARED_FLOATS(direct, kTile);
    const LinearChunk c(p, quotient(block_index(), p.chunks), remainder(block_index(), p.chunks));
    MatrixSum grads[kStrips]{};  // H
    add_products<false>(p, c, p.grad_v, p.residuals, p.value_dim, tiles, grads);
    const ChunkDecays<true> decays;
    if constexpr (has_gate) decays.make(c.gate(p));
    if (thread_index() < kTile) betas[thread_index()] = c.beta(p);
    multiply_tokens(p, c, direct);
    barrier();
    float* const pairs = reinterpret_cast<float*>(tiles);  // [kTile, kPairStep], once nobody reads the tiles
    const Bf16* const products = c.scores(p.products, p);
    Bf16* const to = c.scores(p.grad_products, p);
    const int own = wave_index();
    INGOT_UNROLL
    for (int j = 0; j < kStrips; ++j) {
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i) {
        const int later = own * kMatrix + MatrixSum::row(i), earlier = j * kMatrix + MatrixSum::column(i);
        if (earlier > later) continue;
        float grad = 0;
        if (earlier < later) {
          pairs[later * kPairStep + earlier] = grads[j].at[i] * to_float(products[later * kTile + earlier]);
          grad = -grads[j].at[i] * betas[earlier];
          if constexpr (has_gate) grad *= decays.between(own, later, j, earlier);
        }
        from_float(grad, to[later * kTile + earlier]);
        from_float(grad, to[earlier * kTile + later]);
      }
    }
    barrier();
    const int token = thread_index();
    if (token < kTile) {
      float sum = direct[token];
      for (int later = token + 1; later < kTile; ++later) {
        float& pair = pairs[later * kPairStep + token];
        sum -= pair;
        pair *= -betas[token];
      }
      if (token < c.count) p.grad_beta[c.pair * p.seq + c.first + token] = sum;
    }
    if (p.grad_gate != nullptr) sum_over_pairs<true>(p, c, pairs);
  }

 private:
  // R dU of each token.
  static INGOT_DEVICE void multiply_tokens(const LinearAttentionProblem& p, const LinearChunk& c, float* products) {
    for (int n = 0; n < kMatrix; ++n) {
      const int t = wave_index() * kMatrix + n;
      const Bf16 *const left = c.rows(p.residuals, p) + t * p.residuals.row_stride, *const right = c.rows(p.grad_written, p) +
                                                                                                   t * p.grad_written.row_stride;
      float sum = 0;
      if (t < c.count)
        for (int64_t d = wave_thread(); d < p.value_dim; d += kWave) sum += to_float(left[d]) * to_float(right[d]);
      sum = wave_sum(sum);
      if (wave_thread() == 0) products[t] = sum;
    }
  }
};

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
