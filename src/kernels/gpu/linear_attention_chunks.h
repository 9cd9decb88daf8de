// Linear attention with a gate per head, or none, on a GPU, and what a gate per channel shares with it: linear_attention_problem.h has the
// problem, kernels/linear_attention.h says what it means. Operands are bf16, matrices are multiplied by the matrix instructions
// (matrix.h), sums and states are fp32.
//
//   forward   scores     of each chunk: q k^T, decayed and masked
//             states     chunk after chunk, a block a tile of a state, in registers; writes them down in front of each chunk, in bf16
//             products   of each chunk: out = scores v + (decayed q) state
//   backward  scores     and their gradient; states once more, and from the last chunk on their gradients
//             products   grad_q, grad_k and grad_v, which have the form of out
//             gates      of each token, from sums that the others leave behind
//
// Where there are too few tiles for a GPU, parts of a sequence are worked on at once: each is first passed through from a state of 0, and
// then again from what the parts in front of it make.
// Bound by memory: of a chunk q, k, v and out, its scores and its state in bf16, each written once and read once or twice.
#pragma once

#include "kernels/gpu/linear_attention_problem.h"
#include "kernels/gpu/matrix.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

/// Whose gate it is.
enum class LinearGate { none, of_heads, of_channels };

constexpr int kTile = 64, kTileStep = kTile + 8;                          // bf16 of a row in shared memory: no two threads meet in a bank
constexpr int kPairStep = kTile + 1;                                      // fp32 of a row of pairs
constexpr int kStrips = kTile / kMatrix, kTileThreads = kStrips * kWave;  // a wave has kMatrix rows
static_assert(kTile == kLinearAttentionChunk && kTile == kStateTile && kStrips == kStateTileParts);

/// Of a block's chunk.
struct LinearChunk {
  int64_t pair, chunk, first;  // first: token
  int count;

  INGOT_DEVICE LinearChunk(const LinearAttentionProblem& p, int64_t pair_, int64_t chunk_)
      : pair(pair_), chunk(chunk_), first(chunk_ * kTile) {
    count = static_cast<int>(p.seq - first < kTile ? p.seq - first : kTile);
  }
  template <class T = Bf16>
  INGOT_DEVICE T* rows(const HeadRows& x, const LinearAttentionProblem& p) const {
    return static_cast<T*>(x.data) + quotient(pair, p.heads) * x.batch_stride + remainder(pair, p.heads) * x.head_stride +
           first * x.row_stride;
  }
  INGOT_DEVICE Bf16* state(uint16_t* states, const LinearAttentionProblem& p) const {
    return reinterpret_cast<Bf16*>(states) + (pair * p.chunks + chunk) * p.key_dim * p.value_dim;
  }
  INGOT_DEVICE Bf16* scores(uint16_t* of_all, const LinearAttentionProblem& p) const {
    return reinterpret_cast<Bf16*>(of_all) + (pair * p.chunks + chunk) * kTile * kTile;
  }
  /// Of token thread_index(), where there is one.
  INGOT_DEVICE float gate(const LinearAttentionProblem& p) const {
    return thread_index() < count ? p.gate[pair * p.seq + first + thread_index()] : 0.0f;
  }
  INGOT_DEVICE float beta(const LinearAttentionProblem& p) const {
    return thread_index() < count ? p.beta[pair * p.seq + first + thread_index()] : 0.0f;
  }
};

/// kTile rows and columns of bf16 on their way through registers to shared memory, shared out among the threads.
struct TileOnItsWay {
  static constexpr int kAtOnce = 8, kVectors = kTile * kTile / kAtOnce / kTileThreads;
  using V = Vector<Bf16, kAtOnce>;
  V at[kVectors];

  static constexpr int kApart = kTileThreads / (kTile / kAtOnce);  // rows of a thread's vectors
  static INGOT_DEVICE int row(int i) { return thread_index() / (kTile / kAtOnce) + i * kApart; }
  static INGOT_DEVICE int column() { return thread_index() % (kTile / kAtOnce) * kAtOnce; }
  /// Zeros behind `rows` and `columns`.
  INGOT_DEVICE void load(const Bf16* from, int64_t step, int64_t rows, int64_t columns) {
    const Bf16* own = from + row(0) * step + column();
    const int left = column() < columns ? static_cast<int>(rows) - row(0) : 0;
    INGOT_UNROLL
    for (int i = 0; i < kVectors; ++i, own += kApart * step) at[i] = i * kApart < left ? *reinterpret_cast<const V*>(own) : V{};
  }
  INGOT_DEVICE void store(Bf16* to) const {
    INGOT_UNROLL
    for (int i = 0; i < kVectors; ++i) *reinterpret_cast<V*>(to + row(i) * kTileStep + column()) = at[i];
  }
  /// With a factor for each row.
  INGOT_DEVICE void store(Bf16* to, const float* factors) const {
    INGOT_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      V scaled;
      for (int k = 0; k < kAtOnce; ++k) from_float(factors[row(i)] * to_float(at[i].at[k]), scaled.at[k]);
      *reinterpret_cast<V*>(to + row(i) * kTileStep + column()) = scaled;
    }
  }
};

/// sums += the wave's rows of `left` times `right`, both tiles in shared memory: of what is multiplied the strips from `begin` to before
/// `end`, of the columns those before `columns`.
template <Order left_order, Order right_order, int count>
INGOT_DEVICE void multiply_tiles(MatrixSum (&sums)[count], const Bf16* left, const Bf16* right, int begin = 0, int end = kStrips,
                                 int columns = count) {
  constexpr int kLeftStep = left_order == Order::by_row ? 1 : kTileStep, kRightStep = right_order == Order::by_row ? kTileStep : 1,
                kColumnStep = right_order == Order::by_row ? 1 : kTileStep;
  const Bf16* const own = left + kMatrix * wave_index() * (left_order == Order::by_row ? kTileStep : 1);
  INGOT_UNROLL
  for (int k = 0; k < kStrips; ++k) {
    if (k < begin || k >= end) continue;
    const auto a = load_left<left_order>(own + kMatrix * k * kLeftStep, kTileStep);
    INGOT_UNROLL
    for (int j = 0; j < count; ++j)
      if (j < columns) multiply(sums[j], a, load_right<right_order>(right + kMatrix * (k * kRightStep + j * kColumnStep), kTileStep));
  }
}

/// What the gates make of a chunk. Sums of logarithms are exponentiated, never differences of sums, and factors of at most 1 multiplied: no
/// gate is too strong, and weak ones beside it keep their digits.
template <bool has_pairs>
struct ChunkDecays {
  float *gates, *up_to, *behind;  // [kTile] within a strip: to this token, its own gate included; from behind it to the strip's end
  float *from_start, *to_end;     // [kTile] within the chunk
  float* strips;                  // [kStrips], of whole strips
  float* within;                  // [kStrips, kMatrix, kMatrix], from a token (column) to a later one (row) of the same strip

  INGOT_DEVICE ChunkDecays() {
    INGOT_SHARED_FLOATS(by_token, 5 * kTile + kStrips);
    INGOT_SHARED_FLOATS(by_pair, has_pairs ? kTile * kMatrix : 1);
    gates = by_token, up_to = gates + kTile, behind = up_to + kTile, from_start = behind + kTile, to_end = from_start + kTile;
    strips = to_end + kTile, within = by_pair;
  }

  /// `gate`: the logarithm of token thread_index(). All threads come.
  INGOT_DEVICE void make(float gate) const {
    const int token = thread_index(), strip = token / kMatrix, first = strip * kMatrix, end = first + kMatrix;
    if (token < kTile) gates[token] = gate;
    barrier();
    if (token < kTile) {
      float before = 0, after = 0;
      for (int t = first; t < end; ++t) (t <= token ? before : after) += gates[t];
      up_to[token] = exponential(before);
      behind[token] = exponential(after);
      if (token == end - 1) strips[strip] = up_to[token];
      if constexpr (has_pairs) {
        float sum = 0;
        for (int t = token; t < end; ++t) {
          if (t > token) sum += gates[t];
          within[t * kMatrix + token - first] = exponential(sum);
        }
      }
    }
    barrier();
    if (token < kTile) {
      float before = up_to[token], after = behind[token];
      for (int s = 0; s < kStrips; ++s) {
        if (s < strip) before *= strips[s];
        if (s > strip) after *= strips[s];
      }
      from_start[token] = before;
      to_end[token] = after;
    }
    barrier();
  }
  INGOT_DEVICE float whole() const { return strips[0] * strips[1] * strips[2] * strips[3]; }
  /// From token `earlier` to token `later`, not before it, of the strips that they lie in.
  INGOT_DEVICE float between(int later_strip, int later, int earlier_strip, int earlier) const {
    if (later_strip == earlier_strip) return within[later * kMatrix + earlier - earlier_strip * kMatrix];
    float decay = up_to[later] * behind[earlier];
    for (int s = 1; s < kStrips - 1; ++s)
      if (s > earlier_strip && s < later_strip) decay *= strips[s];
    return decay;
  }
};

/// sums += left right^T over `dim`, as far as they are not masked: up to the diagonal's strip. is_ahead: the next tiles are loaded while
/// these are multiplied, where registers are left for that.
template <bool is_ahead>
INGOT_DEVICE void add_products(const LinearAttentionProblem& p, const LinearChunk& c, const HeadRows& left, const HeadRows& right,
                               int64_t dim, Bf16* tiles, MatrixSum (&sums)[kStrips]) {
  const Bf16 *const left_rows = c.rows(left, p), *const right_rows = c.rows(right, p);
  TileOnItsWay next_left, next_right;
  const auto load = [&](int64_t from) {
    next_left.load(left_rows + from, left.row_stride, c.count, dim - from);
    next_right.load(right_rows + from, right.row_stride, c.count, dim - from);
  };
  if constexpr (is_ahead) load(0);
  INGOT_ROLLED
  for (int64_t from = 0; from < dim; from += kTile) {
    if constexpr (!is_ahead) load(from);
    next_left.store(tiles);
    next_right.store(tiles + kTile * kTileStep);
    barrier();
    if constexpr (is_ahead)
      if (from + kTile < dim) load(from + kTile);
    multiply_tiles<Order::by_row, Order::by_column>(sums, tiles, tiles + kTile * kTileStep, 0, kStrips, wave_index() + 1);
    barrier();  // before the next ones come there
  }
}

/// p.gate_of_scores, of token t's gate: all pairs of a token from t on and one before it. [kTile, kPairStep], taken apart.
template <bool is_added>
INGOT_DEVICE void sum_over_pairs(const LinearAttentionProblem& p, const LinearChunk& c, float* pairs) {
  const int own = thread_index();
  barrier();
  if (own < kTile) {
    float sum = 0;
    for (int t = 0; t <= own; ++t) {  // a row: over the tokens before each
      const float here = t < own ? pairs[own * kPairStep + t] : 0.0f;
      pairs[own * kPairStep + t] = sum;
      sum += here;
    }
  }
  barrier();
  if (own >= c.count) return;
  float sum = 0;
  for (int t = own; t < c.count; ++t) sum += pairs[t * kPairStep + own];
  float& to = p.gate_of_scores[c.pair * p.seq + c.first + own];
  to = is_added ? to + sum : sum;
}

/// p.scores; backward also p.grad_scores and p.gate_of_scores. A block a chunk.
template <bool has_gate, bool is_backward>
struct LinearScores {
  static constexpr int kThreads = kTileThreads;
  static constexpr bool kFitsAQuarter = true;

  static INGOT_DEVICE void run(const LinearAttentionProblem& p) {
    INGOT_SHARED(Bf16, tiles, 2 * kTile * kTileStep);
    const LinearChunk c(p, quotient(block_index(), p.chunks), remainder(block_index(), p.chunks));
    MatrixSum scores[kStrips]{}, grads[kStrips]{};
    add_products<!is_backward>(p, c, p.q, p.k, p.key_dim, tiles, scores);
    if constexpr (is_backward) add_products<!is_backward>(p, c, p.grad_out, p.v, p.value_dim, tiles, grads);
    const ChunkDecays<true> decays;
    if constexpr (has_gate) decays.make(c.gate(p));
    float* const pairs = reinterpret_cast<float*>(tiles);  // [kTile, kPairStep], once nobody reads the tiles
    const bool has_gate_gradient = is_backward && p.grad_gate != nullptr;
    const int own = wave_index();
    INGOT_UNROLL
    for (int j = 0; j < kStrips; ++j) {
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i) {
        const int later = own * kMatrix + MatrixSum::row(i), earlier = j * kMatrix + MatrixSum::column(i);
        float decay = earlier <= later ? 1.0f : 0.0f;
        if constexpr (has_gate)
          if (earlier <= later) decay = decays.between(own, later, j, earlier);
        scores[j].at[i] *= decay;
        if constexpr (is_backward) {
          if (has_gate_gradient && earlier < later) pairs[later * kPairStep + earlier] = grads[j].at[i] * scores[j].at[i];
          grads[j].at[i] *= decay;
        }
      }
      const int64_t offset = own * kMatrix * kTile + j * kMatrix;
      store(scores[j], c.scores(p.scores, p) + offset, kTile);
      if constexpr (is_backward) store(grads[j], c.scores(p.grad_scores, p) + offset, kTile);
    }
    if (has_gate_gradient) sum_over_pairs<false>(p, c, pairs);
  }
};

/// States in front of chunks, or from the last chunk on gradients behind them; of_zero: only what the parts make of 0, without the last one
/// in that order. A block a part and tile. With a gate per channel keys and queries come decayed (linear_attention_channels.h).
template <LinearGate gate, bool is_gradient, bool of_zero>
struct LinearStates {
  static constexpr int kThreads = kTileThreads;
  static constexpr bool has_gate = gate == LinearGate::of_heads, is_by_channel = gate == LinearGate::of_channels;
  static constexpr bool kFitsAQuarter = true;

  static INGOT_DEVICE void run(const LinearAttentionProblem& p) {
    INGOT_SHARED(Bf16, tiles, 2 * kTile * kTileStep);
    const int64_t per_part = p.key_tiles * p.value_tiles, parts = of_zero ? p.parts - 1 : p.parts;
    const int64_t tile = remainder(block_index(), per_part), of_part = quotient(block_index(), per_part);
    const int64_t part = remainder(of_part, parts) + (of_zero && is_gradient ? 1 : 0), pair = quotient(of_part, parts);
    const Tile place(p, tile);
    const int64_t begin = first_row_of(p.chunks, part, p.parts), end = first_row_of(p.chunks, part + 1, p.parts);

    MatrixSum sums[kStrips]{};
    if constexpr (!of_zero) start(p, place, pair, part, sums);
    const ChunkDecays<false> decays;
    const HeadRows &left = is_by_channel ? (is_gradient ? p.decayed_q : p.decayed_k)
                           : is_gradient ? p.q
                                         : p.k,
                   &right = is_gradient ? p.grad_out : p.v;
    TileOnItsWay next_left, next_right;
    float next_gate = 0;
    ByRow decay;  // of the part so far
    decay.fill(1);
    const auto load = [&](int64_t chunk) {
      const LinearChunk c(p, pair, chunk);
      next_left.load(c.rows(left, p) + place.key, left.row_stride, c.count, p.key_dim - place.key);
      next_right.load(c.rows(right, p) + place.value, right.row_stride, c.count, p.value_dim - place.value);
      if constexpr (has_gate) next_gate = c.gate(p);
    };
    load(is_gradient ? end - 1 : begin);
    INGOT_ROLLED
    for (int64_t n = begin; n < end; ++n) {
      const LinearChunk c(p, pair, is_gradient ? begin + end - 1 - n : n);
      if constexpr (has_gate) {
        decays.make(next_gate);
        next_left.store(tiles, is_gradient ? decays.from_start : decays.to_end);
      } else next_left.store(tiles);
      next_right.store(tiles + kTile * kTileStep);
      barrier();
      if (n + 1 < end) load(is_gradient ? c.chunk - 1 : c.chunk + 1);
      ByRow whole;
      if constexpr (is_by_channel) whole.load(place, p.whole + (pair * p.chunks + c.chunk) * p.key_dim);
      else whole.fill(has_gate ? decays.whole() : 1.0f);
      if constexpr (!of_zero) {
        write(p, place, c, sums);
        if constexpr (is_gradient && is_by_channel) write_kept_by_channel(p, place, c, tile, sums, whole);
        else if (is_gradient && p.grad_gate != nullptr) write_kept(p, place, c, tile, sums, whole.at[0]);
      }
      if constexpr (gate != LinearGate::none) {
        INGOT_UNROLL
        for (int j = 0; j < kStrips; ++j)
          for (int i = 0; i < kMatrixOfThread; ++i) sums[j].at[i] *= whole.at[ByRow::of(i)];
        for (int r = 0; r < ByRow::kCount; ++r) decay.at[r] *= whole.at[r];
      }
      multiply_tiles<Order::by_column, Order::by_row>(sums, tiles, tiles + kTile * kTileStep);
      barrier();  // before the next ones come there
    }
    if constexpr (of_zero) {
      place.store(sums, p.made + (pair * p.parts + part) * p.key_dim * p.value_dim);
      if constexpr (is_by_channel) {
        if (place.value == 0) decay.store(place, p.decays + (pair * p.parts + part) * p.key_dim);
      } else if (tile == 0 && thread_index() == 0) p.decays[pair * p.parts + part] = decay.at[0];
    } else {
      float* const last = is_gradient ? p.grad_initial : p.final_state;
      if (last != nullptr && part == (is_gradient ? 0 : p.parts - 1)) place.store(sums, last + pair * p.key_dim * p.value_dim);
    }
  }

 private:
  /// A block's tile of a state.
  struct Tile {
    int64_t key, value, step;  // its first, and the distance of keys
    int strips;                // of columns that are there
    bool has_rows;             // of the wave's

    INGOT_DEVICE Tile(const LinearAttentionProblem& p, int64_t tile)
        : key(quotient(tile, p.value_tiles) * kTile), value(remainder(tile, p.value_tiles) * kTile), step(p.value_dim) {
      const int64_t columns = p.value_dim - value < kTile ? p.value_dim - value : kTile;
      strips = static_cast<int>(columns) / kMatrix;
      has_rows = key + wave_index() * kMatrix < p.key_dim;
    }
    INGOT_DEVICE int64_t at(int j) const { return (key + wave_index() * kMatrix) * step + value + j * kMatrix; }
    /// visit(j, i, where the element is in a state) of the thread's.
    template <class Visit>
    INGOT_DEVICE void for_each(const Visit& visit) const {
      INGOT_UNROLL
      for (int j = 0; j < kStrips; ++j) {
        if (!has_rows || j >= strips) continue;
        INGOT_UNROLL
        for (int i = 0; i < kMatrixOfThread; ++i) visit(j, i, at(j) + MatrixSum::row(i) * step + MatrixSum::column(i));
      }
    }
    INGOT_DEVICE void store(const MatrixSum (&sums)[kStrips], float* to) const {
      for_each([&](int j, int i, int64_t offset) { to[offset] = sums[j].at[i]; });
    }
  };

  /// A number for each row of a state that the thread has, or one for all.
  struct ByRow {
    static constexpr int kCount = is_by_channel ? kMatrixRowsOfThread : 1;
    float at[kCount];

    static constexpr INGOT_DEVICE int of(int i) { return is_by_channel ? MatrixSum::row_of_thread(i) : 0; }
    INGOT_DEVICE void fill(float value) {
      for (int r = 0; r < kCount; ++r) at[r] = value;
    }
    /// [key_dim]; 1 where the wave has no rows.
    INGOT_DEVICE void load(const Tile& place, const float* of_keys) {
      const float* const own = of_keys + place.key + wave_index() * kMatrix;
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i) at[of(i)] = place.has_rows ? own[MatrixSum::row(i)] : 1.0f;
    }
    INGOT_DEVICE void store(const Tile& place, float* of_keys) const {
      float* const own = of_keys + place.key + wave_index() * kMatrix;
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i)
        if (place.has_rows && MatrixSum::column(i) == 0) own[MatrixSum::row(i)] = at[of(i)];
    }
  };

  // What comes in front of the part, or behind it: from what was saved, or from what the parts there make.
  static INGOT_DEVICE void start(const LinearAttentionProblem& p, const Tile& place, int64_t pair, int64_t part,
                                 MatrixSum (&sums)[kStrips]) {
    const int64_t size = p.key_dim * p.value_dim;
    const bool is_saved = !is_gradient && p.final_state == nullptr;
    const float* const given = is_gradient ? p.grad_final : p.initial_state;
    float* const saved = p.saved + (pair * p.parts + part) * size;
    if (is_saved) return place.for_each([&](int j, int i, int64_t offset) { sums[j].at[i] = saved[offset]; });
    if (given != nullptr) place.for_each([&](int j, int i, int64_t offset) { sums[j].at[i] = given[pair * size + offset]; });
    INGOT_ROLLED
    for (int64_t n = 0; n < (is_gradient ? p.parts - 1 - part : part); ++n) {
      const int64_t of = pair * p.parts + (is_gradient ? p.parts - 1 - n : n);
      ByRow decay;
      if constexpr (is_by_channel) decay.load(place, p.decays + of * p.key_dim);
      else decay.fill(p.decays[of]);
      place.for_each(
          [&](int j, int i, int64_t offset) { sums[j].at[i] = decay.at[ByRow::of(i)] * sums[j].at[i] + p.made[of * size + offset]; });
    }
    if constexpr (!is_gradient) place.store(sums, saved);
  }

  static INGOT_DEVICE void write(const LinearAttentionProblem& p, const Tile& place, const LinearChunk& c,
                                 const MatrixSum (&sums)[kStrips]) {
    Bf16* const to = c.state(is_gradient ? p.grad_states : p.states, p);
    INGOT_UNROLL
    for (int j = 0; j < kStrips; ++j)
      if (place.has_rows && j < place.strips) gpu::store(sums[j], to + place.at(j), place.step);
  }

  // What the gates of the whole chunk have to do with the state that passes it.
  static INGOT_DEVICE void write_kept(const LinearAttentionProblem& p, const Tile& place, const LinearChunk& c, int64_t tile,
                                      const MatrixSum (&sums)[kStrips], float whole) {
    const Bf16* const before = c.state(p.states, p);
    float sum = 0;
    place.for_each([&](int j, int i, int64_t offset) { sum += sums[j].at[i] * to_float(before[offset]); });
    sum = whole * wave_sum(sum);
    if (wave_thread() == 0) p.kept[(c.pair * p.chunks + c.chunk) * p.kept_parts + tile * kStrips + wave_index()] = sum;
  }
  static INGOT_DEVICE void write_kept_by_channel(const LinearAttentionProblem& p, const Tile& place, const LinearChunk& c, int64_t tile,
                                                 const MatrixSum (&sums)[kStrips], const ByRow& whole) {
    const Bf16* const before = c.state(p.states, p);
    ByRow kept;
    kept.fill(0);
    place.for_each([&](int j, int i, int64_t offset) { kept.at[ByRow::of(i)] += sums[j].at[i] * to_float(before[offset]); });
    INGOT_UNROLL
    for (int r = 0; r < ByRow::kCount; ++r) kept.at[r] = whole.at[r] * sum_over_columns(kept.at[r]);
    kept.store(place, p.kept + ((remainder(tile, p.value_tiles) * p.pairs + c.pair) * p.chunks + c.chunk) * p.key_dim);
  }
};

enum class LinearResult { out, grad_q, grad_k, grad_v, grad_k_of_system };

/// A tile of columns of a chunk's result: weights x + decays (z state).
///
///   result     weights        x         z         state                   decays
///   out        scores         v         q         in front                from the start
///   grad_v     scores^T       grad_out  k         gradient behind         to the end
///   grad_q     grad_scores    k         grad_out  in front, transposed    from the start
///   grad_k     grad_scores^T  q         v         gradient behind, tr.    to the end
///   of_system  grad_products  k         grad_v    in front, transposed    from the start, negative
///
/// The last, of the delta rule alone, is its part of grad_k, to which grad_k is then added. With a gate per channel q and k, as z, come
/// decayed by channel; grad_q and grad_k are made by LinearChannelGradients.
template <LinearGate gate, LinearResult result>
struct LinearProduct {
  static constexpr int kThreads = kTileThreads;
  static constexpr bool kFitsAQuarter = true;
  static constexpr bool of_system = result == LinearResult::grad_k_of_system;
  static constexpr bool has_keys = result == LinearResult::grad_q || result == LinearResult::grad_k || of_system,  // as columns
      is_transposed = result == LinearResult::grad_k || result == LinearResult::grad_v,                            // the weights
      has_gate = gate == LinearGate::of_heads, is_by_channel = gate == LinearGate::of_channels;

  static INGOT_DEVICE void run(const LinearAttentionProblem& p) {
    INGOT_SHARED(Bf16, tiles, 2 * kTile * kTileStep);
    Bf16 *const left = tiles, *const right = tiles + kTile * kTileStep;
    const int64_t columns = has_keys ? p.key_dim : p.value_dim, inner = has_keys ? p.value_dim : p.key_dim,
                  column_tiles = has_keys ? p.key_tiles : p.value_tiles;
    const int64_t tile = remainder(block_index(), column_tiles), column = tile * kTile, of_pair = quotient(block_index(), column_tiles);
    const LinearChunk c(p, quotient(of_pair, p.chunks), remainder(of_pair, p.chunks));
    const HeadRows& x = result == LinearResult::out      ? p.v
                        : result == LinearResult::grad_v ? p.grad_out
                        : result == LinearResult::grad_k ? p.q
                                                         : p.k;
    const HeadRows& z = result == LinearResult::out      ? (is_by_channel ? p.decayed_q : p.q)
                        : result == LinearResult::grad_v ? (is_by_channel ? p.decayed_k : p.k)
                        : result == LinearResult::grad_q ? p.grad_out
                        : of_system                      ? p.grad_v
                                                         : p.v;
    const Bf16 *const state = c.state(is_transposed ? p.grad_states : p.states, p), *const z_rows = c.rows(z, p);

    TileOnItsWay next_left, next_right;
    const auto load = [&](int64_t from) {
      next_left.load(z_rows + from, z.row_stride, c.count, inner - from);
      const int64_t key = has_keys ? column : from, value = has_keys ? from : column;
      next_right.load(state + key * p.value_dim + value, p.value_dim, p.key_dim - key, p.value_dim - value);
    };
    load(0);
    const ChunkDecays<false> decays;
    if constexpr (has_gate) decays.make(c.gate(p));
    MatrixSum sums[kStrips]{};
    INGOT_ROLLED
    for (int64_t from = 0; from < inner; from += kTile) {
      next_left.store(left);
      next_right.store(right);
      barrier();
      if (from + kTile < inner) {
        load(from + kTile);
      } else {
        next_left.load(c.scores(of_system ? p.grad_products : has_keys ? p.grad_scores : p.scores, p), kTile, kTile, kTile);
        next_right.load(c.rows(x, p) + column, x.row_stride, c.count, columns - column);
      }
      multiply_tiles<Order::by_row, has_keys ? Order::by_column : Order::by_row>(sums, left, right);
      barrier();  // before the next ones come there
    }
    if constexpr (has_gate || of_system) {
      const float* const factors = is_transposed ? decays.to_end : decays.from_start;
      INGOT_UNROLL
      for (int j = 0; j < kStrips; ++j)
        for (int i = 0; i < kMatrixOfThread; ++i)
          sums[j].at[i] *= (of_system ? -1.0f : 1.0f) * (has_gate ? factors[wave_index() * kMatrix + MatrixSum::row(i)] : 1.0f);
    }
    if constexpr (has_keys)
      if (p.grad_gate != nullptr) write_sums(p, c, tile, sums);
    next_left.store(left);
    next_right.store(right);
    barrier();
    if constexpr (is_transposed) multiply_tiles<Order::by_column, Order::by_row>(sums, left, right, wave_index(), kStrips);
    else multiply_tiles<Order::by_row, Order::by_row>(sums, left, right, 0, of_system ? kStrips : wave_index() + 1);

    const HeadRows& made = result == LinearResult::out      ? p.out
                           : result == LinearResult::grad_v ? p.grad_v
                           : result == LinearResult::grad_q ? p.grad_q
                                                            : p.grad_k;
    const int first = wave_index() * kMatrix;
    Bf16* const to = c.rows(made, p) + first * made.row_stride + column;
    if (result == LinearResult::grad_k && p.beta != nullptr) add(sums, to, made.row_stride, c.count - first, columns - column);
    INGOT_UNROLL
    for (int j = 0; j < kStrips; ++j)
      if (column + j * kMatrix < columns) store(sums[j], to + j * kMatrix, made.row_stride, c.count - first);
  }

 private:
  static INGOT_DEVICE void add(MatrixSum (&sums)[kStrips], const Bf16* from, int64_t step, int rows, int64_t columns) {
    INGOT_UNROLL
    for (int j = 0; j < kStrips; ++j) {
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i) {
        const int row = MatrixSum::row(i), column = j * kMatrix + MatrixSum::column(i);
        if (row < rows && column < columns) sums[j].at[i] += to_float(from[row * step + column]);
      }
    }
  }

  // Of each token what q, or k, makes of what the states give its gradient.
  static INGOT_DEVICE void write_sums(const LinearAttentionProblem& p, const LinearChunk& c, int64_t tile,
                                      const MatrixSum (&sums)[kStrips]) {
    const HeadRows& own = result == LinearResult::grad_q ? p.q : p.k;
    float* const to = (result == LinearResult::grad_k ? p.writes : p.reads) +
                      (((of_system ? p.key_tiles : 0) + tile) * p.pairs + c.pair) * p.seq + c.first;
    const Bf16* const rows = c.rows(own, p) + tile * kTile;
    const int first = wave_index() * kMatrix;
    float of_rows[kMatrixRowsOfThread]{};
    INGOT_UNROLL
    for (int j = 0; j < kStrips; ++j) {
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i) {
        const int row = first + MatrixSum::row(i), column = j * kMatrix + MatrixSum::column(i);
        if (row < c.count && tile * kTile + column < p.key_dim)
          of_rows[MatrixSum::row_of_thread(i)] += sums[j].at[i] * to_float(rows[row * own.row_stride + column]);
      }
    }
    INGOT_UNROLL
    for (int r = 0; r < kMatrixRowsOfThread; ++r) of_rows[r] = sum_over_columns(of_rows[r]);
    INGOT_UNROLL
    for (int i = 0; i < kMatrixOfThread; ++i)
      if (MatrixSum::column(i) == 0 && first + MatrixSum::row(i) < c.count)
        to[first + MatrixSum::row(i)] = of_rows[MatrixSum::row_of_thread(i)];
  }
};

/// p.grad_gate, of the sums that the other kernels left. A block a chunk, a thread a token.
struct LinearGates {
  static constexpr int kThreads = kTile;

  static INGOT_DEVICE void run(const LinearAttentionProblem& p) {
    INGOT_SHARED_FLOATS(reads, kTile);
    INGOT_SHARED_FLOATS(writes, kTile);
    const LinearChunk c(p, quotient(block_index(), p.chunks), remainder(block_index(), p.chunks));
    const int own = thread_index();
    const int64_t at = c.pair * p.seq + c.first + own;
    float read = 0, written = 0, sum = 0;
    if (own < c.count) {
      for (int64_t tile = 0; tile < p.key_tiles; ++tile) written += p.writes[tile * p.pairs * p.seq + at];
      for (int64_t tile = 0; tile < p.read_tiles; ++tile) read += p.reads[tile * p.pairs * p.seq + at];
      sum = p.gate_of_scores[at];
    }
    reads[own] = read;
    writes[own] = written;
    barrier();
    if (own >= c.count) return;
    for (int t = 0; t < c.count; ++t) sum += t < own ? writes[t] : reads[t];
    for (int64_t i = 0; i < p.kept_parts; ++i) sum += p.kept[(c.pair * p.chunks + c.chunk) * p.kept_parts + i];
    p.grad_gate[at] = sum;
  }
};

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
