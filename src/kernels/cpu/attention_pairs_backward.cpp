// Backward pass of one part of the queries that share a kv head, in bf16: as attention_backward.cpp, with transposed scores. Weights and
// their gradients are rounded to bf16 as operands of the next products: the weights' rows lie by keys, as grad_v = P^T grad_out takes them;
// those of dS by keys for grad_k = dS^T q and in pairs of keys for grad_q^T = k^T dS^T. Limit with heads of 64: 10 cycles of AMX for 16
// scores against about 16 vector operations, 2 a cycle; and L2, where grad_k and grad_v of a block are added up.
#include "kernels/cpu/attention_pairs_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

struct Work {
  float *weights, *deltas;                    // [kPairKeys, kPairQueries]: S; grad_out v^T; both transposed
  float* grad_queries;                        // [width, kPairQueries]
  float *log_sum_exp, *mean, *scale;          // [kPairQueries]: base 2; D of attention_backward.cpp; the rule's
  bf16 *queries_by_channel, *queries_by_row;  // pairs of channels, [width / 2, kPairQueries]; of rows, [kPairQueries / 2, width]
  bf16 *grads_by_channel, *grads_by_row;      // of the output, alike
  bf16 *weight_rows, *delta_rows;             // [kPairKeys, kPairQueries]
  bf16* delta_pairs;                          // of keys, [kPairKeys / 2, kPairQueries]
  float *grad_keys, *grad_values;             // [key_blocks * kPairKeys, width or value_width] of this part
  Work(const AttentionProblem& p, int64_t task, float* scratch) {
    constexpr int64_t kScores = kPairKeys * kPairQueries;
    weights = scratch, deltas = weights + kScores;
    grad_queries = deltas + kScores;
    log_sum_exp = grad_queries + p.width() * kPairQueries, mean = log_sum_exp + kPairQueries, scale = mean + kPairQueries;
    queries_by_channel = reinterpret_cast<bf16*>(scale + kPairQueries);
    queries_by_row = queries_by_channel + p.width() * kPairQueries;
    grads_by_channel = queries_by_row + p.width() * kPairQueries;
    grads_by_row = grads_by_channel + p.value_width() * kPairQueries;
    weight_rows = grads_by_row + p.value_width() * kPairQueries, delta_rows = weight_rows + kScores, delta_pairs = delta_rows + kScores;
    grad_keys = p.partial_grads + task * p.part_size();
    grad_values = grad_keys + p.key_blocks() * kPairKeys * p.width();
  }
};

// What 16 queries take of the softmax's gradient.
struct Lanes {
  Float log_sum_exp, mean;
  Int begin, end;
  Lanes(const Work& work, const Strip& strip, int64_t which, int64_t group)
      : log_sum_exp(load(work.log_sum_exp + which * kTile + group)), mean(load(work.mean + which * kTile + group)) {
    __builtin_memcpy(&begin, strip.begin + group, sizeof begin);
    __builtin_memcpy(&end, strip.end + group, sizeof end);
  }
};

struct Weighed {
  Float weight, delta;
};

template <bool capped, bool masked>
INGOT_INLINE Weighed differentiated(const float* weights, const float* deltas, const Lanes& lanes, int32_t key, float factor, float cap) {
  Float score = load(weights) * factor, slope;
  if constexpr (capped) {
    const Tanh within = tanh(score);
    score = within.value * (cap * kLog2E), slope = within.slope;
  }
  Weighed x;
  x.weight = exp2_for_bf16(score - lanes.log_sum_exp);
  x.delta = x.weight * (load(deltas) - lanes.mean);
  if constexpr (capped) x.delta *= slope;
  if constexpr (masked) {
    const Int sees = (lanes.begin <= key) & (lanes.end > key);
    x.weight = sees ? x.weight : Float{};
    x.delta = sees ? x.delta : Float{};
  }
  return x;
}

// Of a strip's scores and grad_out v^T the operands of the products behind. Keys count from the beginning of their block.
template <bool capped, bool masked>
void differentiate(const Work& work, const AttentionProblem& p, const Strip& strip, int64_t which, int64_t block, Range keys) {
  const Lanes lanes[2] = {{work, strip, which, 0}, {work, strip, which, 16}};
  const float factor = product_scale(p);
  for (int64_t key = keys.begin; key < keys.end; key += 2) {
    Weighed x[2][2];  // key, group
    for (int64_t i = 0; i < 2; ++i)
      for (int64_t group = 0; group < 2; ++group) {
        const int64_t at = (key + i) * kPairQueries + which * kTile + 16 * group;
        x[i][group] = differentiated<capped, masked>(work.weights + at, work.deltas + at, lanes[group],
                                                     static_cast<int32_t>(block + key + i), factor, p.cap);
      }
    const auto rounded = [](Float low, Float high) {
      return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high), reinterpret_cast<__m512>(low)));
    };
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t at = (key + i) * kPairQueries + which * kTile;
      _mm512_storeu_si512(work.weight_rows + at, rounded(x[i][0].weight, x[i][1].weight));
      _mm512_storeu_si512(work.delta_rows + at, rounded(x[i][0].delta, x[i][1].delta));
    }
    bf16* const pairs = work.delta_pairs + (key / 2 * kPairQueries + which * kTile) * kPairs;
    for (int64_t group = 0; group < 2; ++group)
      _mm512_storeu_si512(pairs + 16 * group * kPairs, in_pairs(x[0][group].delta, x[1][group].delta));
  }
}

INGOT_INLINE void add_block(const Work& work, const AttentionProblem& p, const Strip (&strips)[2], int64_t block,
                            const PackedPairs& packed) {
  const int64_t width = p.width(), value_width = p.value_width();
  Range keys[2];  // that each strip sees, from the beginning of the block
  for (int64_t which = 0; which < 2; ++which) {
    const Range seen = strips[which].tiles_in(block, block + kPairKeys);
    keys[which] = {seen.begin - block, seen.end - block};
    if (seen.begin >= seen.end) continue;
    for (int64_t key = keys[which].begin; key < keys[which].end; key += kTile) {
      const int64_t at = key * kPairQueries + which * kTile, pairs = which * kTile * kPairs;
      product_of_tiles<Into::scaled>(width, packed.keys + key * width, width, work.queries_by_channel + pairs, kPairQueries * kPairs,
                                     work.weights + at, kPairQueries);
      product_of_tiles<Into::scaled>(value_width, packed.values + key * value_width, value_width, work.grads_by_channel + pairs,
                                     kPairQueries * kPairs, work.deltas + at, kPairQueries);
    }
    const bool masked = strips[which].hides_some_of(seen);
    const auto run = p.cap > 0 ? masked ? &differentiate<true, true> : &differentiate<true, false>
                     : masked ? &differentiate<false, true>
                               : &differentiate<false, false>;
    run(work, p, strips[which], which, block, keys[which]);
    for (int64_t d = 0; d < width; d += kTile)
      product_of_tiles<Into::added>(keys[which].end - keys[which].begin, packed.keys_by_dim + d * kPairKeys + keys[which].begin, kPairKeys,
                                    work.delta_pairs + (keys[which].begin / 2 * kPairQueries + which * kTile) * kPairs,
                                    kPairQueries * kPairs, work.grad_queries + d * kPairQueries + which * kTile, kPairQueries);
  }
  for (int64_t key = 0; key < kPairKeys; key += kTile) {
    const auto sees = [&](int64_t which) { return keys[which].begin <= key && key < keys[which].end; };
    const int64_t first = sees(0) ? 0 : 1, depth = (sees(0) + sees(1)) * kTile, from = key * kPairQueries + first * kTile;
    if (depth == 0) continue;
    for (int64_t d = 0; d < value_width; d += kTile)
      product_of_tiles<Into::added>(depth, work.weight_rows + from, kPairQueries,
                                    work.grads_by_row + (first * kTile / 2 * value_width + d) * kPairs, value_width * kPairs,
                                    work.grad_values + (block + key) * value_width + d, value_width);
    for (int64_t d = 0; d < width; d += kTile)
      product_of_tiles<Into::added>(depth, work.delta_rows + from, kPairQueries,
                                    work.queries_by_row + (first * kTile / 2 * width + d) * kPairs, width * kPairs,
                                    work.grad_keys + (block + key) * width + d, width);
  }
}

void add_queries(const AttentionProblem& p, const Work& work, int64_t b, int64_t head, int64_t query_block) {
  const int64_t first = query_block * kPairQueries, count = smaller(kPairQueries, p.q_len - first);
  const bf16* q = row<bf16>(p.q, b, first, head);
  const bf16* grad = row<bf16>(p.grad_out, b, first, head);
  pack_pairs_of_channels(q, p.q.row_stride, count, p.head_dim, p.width(), work.queries_by_channel);
  pack_pairs_of_rows(q, p.q.row_stride, count, p.head_dim, p.width(), work.queries_by_row);
  pack_pairs_of_channels(grad, p.grad_out.row_stride, count, p.value_dim, p.value_width(), work.grads_by_channel);
  pack_pairs_of_rows(grad, p.grad_out.row_stride, count, p.value_dim, p.value_width(), work.grads_by_row);
  clear(work.grad_queries, p.width() * kPairQueries);
  for (int64_t i = 0; i < kPairQueries; ++i) {
    work.log_sum_exp[i] = i < count ? p.log_sum_exp[(b * p.heads + head) * p.q_len + first + i] * kLog2E : 0;
    work.mean[i] = i < count ? dot(grad + i * p.grad_out.row_stride, row<bf16>(p.out, b, first + i, head), p.value_dim) : 0;
    work.scale[i] = p.scale;
  }
  const Strip strips[2] = {{p, b, first, smaller(kTile, count)}, {p, b, first + kTile, larger(0, count - kTile)}};
  const int64_t tiles = (b * p.kv_heads + head / p.group()) * p.key_blocks(), end = larger(strips[0].last_key, strips[1].last_key);
  for (int64_t block = round_down(strips[0].first_key, kPairKeys); block < end; block += kPairKeys)
    add_block(work, p, strips, block, PackedPairs(p, tiles + block / kPairKeys));
  for (int64_t which = 0; which < 2 && which * kTile < count; ++which)
    store_rows(work.grad_queries + which * kTile, kPairQueries, p.head_dim, work.scale, smaller(kTile, count - which * kTile),
               row<bf16>(p.grad_q, b, first + which * kTile, head), p.grad_q.row_stride);
}

}  // namespace

void attention_pairs_backward(const AttentionProblem& p, int64_t task, float* scratch) {
  const int64_t part = task % p.parts, kv_head = task / p.parts % p.kv_heads, b = task / p.parts / p.kv_heads;
  const Work work(p, task, scratch);
  clear(work.grad_keys, p.part_size());
  const int32_t* pairs = p.part_begin + b * (p.parts + 1) + part;
  const TileRegisters tiles_of_thread;
  for (int64_t pair = pairs[0]; pair < pairs[1]; ++pair)
    add_queries(p, work, b, kv_head * p.group() + pair / p.query_blocks(), pair % p.query_blocks());
}

int64_t attention_pairs_backward_scratch(const AttentionProblem& p) {
  const int64_t scores = kPairKeys * kPairQueries;
  return 2 * scores + kPairQueries * (p.width() + 3) + (2 * kPairQueries * (p.width() + p.value_width()) + 3 * scores) / 2;
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
