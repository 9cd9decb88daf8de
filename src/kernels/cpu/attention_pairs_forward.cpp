// Forward pass of one block of queries, in bf16. As attention_forward.cpp, with transposed scores; a query's maximum is raised only when a
// score exceeds it by 2^8, since sums in fp32 hold that and weights in bf16 have the same digits whatever their size. Limit with heads of
// 64: 4 cycles of AMX for 16 scores against about 13 vector operations, 2 a cycle.
#include "kernels/cpu/attention_pairs_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

constexpr float kHeadroom = 8;  // powers of two by which scores may exceed the maximum that is taken off
constexpr float kLowestMaximum = -1e30f;

struct Work {
  float* scores;   // [kPairKeys, kTile]
  float* out;      // [2 strips, value_width, kTile], not yet divided by the sum
  float* maximum;  // [kPairQueries], what is taken off the scores
  float* sum;      // [kPairQueries]
  bf16* queries;   // [width / 2 pairs, kPairQueries]
  bf16* weights;   // [kPairKeys / 2 pairs, kTile]
  Work(const AttentionProblem& p, float* scratch) {
    scores = scratch;
    out = scores + kPairKeys * kTile;
    maximum = out + kPairQueries * p.value_width();
    sum = maximum + kPairQueries;
    queries = reinterpret_cast<bf16*>(sum + kPairQueries);
    weights = queries + p.width() * kPairQueries;
  }
};

// Scores [keys, kTile] to what the factor of products makes ready for 2^x: capped, hidden ones -infinity.
INGOT_INLINE void hide(float* scores, const Strip& strip, Range keys) {
  for (int64_t group = 0; group < kTile; group += 16) {
    Int begin, end;
    __builtin_memcpy(&begin, strip.begin + group, sizeof begin);
    __builtin_memcpy(&end, strip.end + group, sizeof end);
    for (int64_t key = keys.begin; key < keys.end; ++key) {
      float* const at = scores + (key - keys.begin) * kTile + group;
      const auto k = static_cast<int32_t>(key);
      store(at, (begin <= k) & (end > k) ? load(at) : broadcast(-__builtin_inff()));
    }
  }
}

// Raises the maxima of 16 queries where their scores, times the factor, are far above; returns those to take off.
INGOT_INLINE Float maxima(const Work& work, const AttentionProblem& p, int64_t strip, int64_t group, int64_t keys, float factor) {
  const float* const scores = work.scores + group;
  Float largest[4];
  for (int i = 0; i < 4; ++i) largest[i] = load(scores + i * kTile);
  for (int64_t key = 4; key < keys; key += 4)
    for (int i = 0; i < 4; ++i) largest[i] = max(largest[i], load(scores + (key + i) * kTile));
  const Float found = max(max(largest[0], largest[1]), max(largest[2], largest[3])) * factor;
  float* const maximum = work.maximum + strip * kTile + group;
  const Float before = load(maximum);
  const Int grows = found > before + kHeadroom;
  if (_mm512_movepi32_mask(reinterpret_cast<__m512i>(grows)) == 0) return before;
  const Float now = grows ? found : before, change = exp2_for_bf16(before - now);
  store(maximum, now);
  float* const sum = work.sum + strip * kTile + group;
  store(sum, load(sum) * change);
  float* const out = work.out + strip * p.value_width() * kTile + group;
  for (int64_t d = 0; d < p.value_width(); ++d) store(out + d * kTile, load(out + d * kTile) * change);
  return now;
}

// Scores to 2^(factor * score - maximum), as pairs of keys in bf16, added to the sums.
INGOT_INLINE void weigh(const Work& work, const AttentionProblem& p, int64_t strip, int64_t keys, float factor) {
  const Float taken[2] = {maxima(work, p, strip, 0, keys, factor), maxima(work, p, strip, 16, keys, factor)};
  for (int group = 0; group < 2; ++group) {
    Float sum[2] = {};
    const float* scores = work.scores + 16 * group;
    bf16* weights = work.weights + 16 * group * kPairs;
    for (int64_t key = 0; key < keys; key += 2, scores += 2 * kTile, weights += kTile * kPairs) {
      const Float first = exp2_for_bf16(load(scores) * factor - taken[group]),
                  second = exp2_for_bf16(load(scores + kTile) * factor - taken[group]);
      sum[0] += first, sum[1] += second;
      _mm512_storeu_si512(weights, in_pairs(first, second));
    }
    float* const to = work.sum + strip * kTile + 16 * group;
    store(to, load(to) + (sum[0] + sum[1]));
  }
}

INGOT_INLINE void add_keys(const Work& work, const AttentionProblem& p, const Strip& strip, int64_t which, int64_t block,
                           const PackedPairs& packed) {
  const Range keys = strip.tiles_in(block, block + kPairKeys);
  const int64_t count = keys.end - keys.begin;
  if (count <= 0) return;
  for (int64_t key = 0; key < count; key += kTile)
    product_of_tiles<Into::scaled>(p.width(), packed.keys + (keys.begin - block + key) * p.width(), p.width(),
                                   work.queries + which * kTile * kPairs, kPairQueries * kPairs, work.scores + key * kTile, kTile);
  float factor = product_scale(p);
  if (p.cap > 0 || factor <= 0) {  // the largest product is to be the largest score
    for (int64_t i = 0; i < count * kTile; i += kLanes) store(work.scores + i, load(work.scores + i) * factor);
    if (p.cap > 0) cap_scores(work.scores, count * kTile, p.cap);
    factor = 1;
  }
  if (strip.hides_some_of(keys)) hide(work.scores, strip, keys);
  weigh(work, p, which, count, factor);
  float* const out = work.out + which * p.value_width() * kTile;
  for (int64_t d = 0; d < p.value_width(); d += kTile)
    product_of_tiles<Into::added>(count, packed.values_by_dim + d * kPairKeys + (keys.begin - block), kPairKeys, work.weights,
                                  kTile * kPairs, out + d * kTile, kTile);
}

}  // namespace

void attention_pairs_forward(const AttentionProblem& p, int64_t task, float* scratch) {
  // The blocks of a head one after another, whose keys stay in cache; those that see most keys first.
  const int64_t blocks = p.query_blocks(), head = task / blocks % p.heads, b = task / blocks / p.heads;
  const int64_t first = (blocks - 1 - task % blocks) * kPairQueries, count = smaller(kPairQueries, p.q_len - first);
  const Work work(p, scratch);
  pack_pairs_of_channels(row<bf16>(p.q, b, first, head), p.q.row_stride, count, p.head_dim, p.width(), work.queries);
  clear(work.out, kPairQueries * p.value_width());
  clear(work.sum, kPairQueries);
  for (int64_t i = 0; i < kPairQueries; ++i) work.maximum[i] = kLowestMaximum;
  const Strip strips[2] = {{p, b, first, smaller(kTile, count)}, {p, b, first + kTile, larger(0, count - kTile)}};

  const int64_t tiles = (b * p.kv_heads + head / p.group()) * p.key_blocks(), end = larger(strips[0].last_key, strips[1].last_key);
  {
    const TileRegisters tiles_of_thread;
    for (int64_t block = round_down(strips[0].first_key, kPairKeys); block < end; block += kPairKeys) {
      const PackedPairs packed(p, tiles + block / kPairKeys);
      for (int64_t which = 0; which < 2; ++which) add_keys(work, p, strips[which], which, block, packed);
    }
  }

  for (int64_t i = 0; i < count; ++i) {
    const float sum = work.sum[i];
    p.log_sum_exp[(b * p.heads + head) * p.q_len + first + i] =
        sum > 0 || sum != sum ? (work.maximum[i] + __builtin_log2f(sum)) * kLn2 : -__builtin_inff();
    work.sum[i] = sum > 0 || sum != sum ? 1 / sum : 0;  // 0: sees none of the keys
  }
  for (int64_t which = 0; which < 2 && which * kTile < count; ++which)
    store_rows(work.out + which * p.value_width() * kTile, kTile, p.value_dim, work.sum + which * kTile,
               smaller(kTile, count - which * kTile), row<bf16>(p.out, b, first + which * kTile, head), p.out.row_stride);
}

int64_t attention_pairs_forward_scratch(const AttentionProblem& p) {
  return kPairKeys * kTile + kPairQueries * (p.value_width() + 2) + (p.width() * kPairQueries + kPairKeys * kTile) / 2;
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
