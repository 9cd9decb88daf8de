// A few queries against a long cache. Algorithm: the keys are cut into chunks of kDecodeKeys; each task reads its chunk of
// one kv head once for all queries of all heads that share it, and leaves maximum, sum and weighted values; decode_join puts
// the chunks together. Keys are read where they lie, without packing. Limit: memory bandwidth, each key and value once.
#include "kernels/cpu/attention_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

// One chunk's result for one query: {maximum, sum, 14 unused, weighted values [width]}.
INGOT_INLINE float* partial(const AttentionProblem& p, int64_t b, int64_t head, int64_t i, int64_t chunk) {
  return p.decode_partials + (((b * p.heads + head) * p.q_len + i) * p.decode_chunks() + chunk) * (16 + p.width());
}

INGOT_INLINE float dot(const float* a, const float* b, int64_t count) {
  Float sum{};
  for (int64_t d = 0; d < count; d += kLanes) sum += load(a + d) * load(b + d);
  return sum_of_lanes(sum)[0];
}

// Scores of one query to weights, in place; the maximum and the sum to result[0] and [1].
INGOT_INLINE void weigh(float* scores, int64_t count, Range keys, float* result) {
  const Float lowest = broadcast(-__builtin_inff());
  Float largest = lowest, sum{};
  for (int64_t j = 0; j < count; j += kLanes) {
    const Float score = lanes_inside(j, keys) ? load(scores + j) : lowest;
    store(scores + j, score);
    largest = max(largest, score);
  }
  largest = max_of_lanes(largest);
  result[0] = largest[0];
  if (keys.end <= keys.begin) largest = Float{};  // sees nothing here: all weights become 0
  for (int64_t j = 0; j < count; j += kLanes) {
    const Float weight = exp2_of_negative(load(scores + j) - largest);
    store(scores + j, weight);
    sum += weight;
  }
  result[1] = sum_of_lanes(sum)[0];
}

template <class T>
void decode(const AttentionProblem& p, int64_t task, float* scratch) {
  const int64_t chunk = task % p.decode_chunks(), kv_head = task / p.decode_chunks() % p.kv_heads,
                b = task / p.decode_chunks() / p.kv_heads;
  const int64_t first = chunk * kDecodeKeys, count = smaller(kDecodeKeys, p.k_len - first), rows = p.group() * p.q_len;
  const int64_t width = p.width(), columns = round_up(p.head_dim, kLanes);
  float* const queries = scratch;                      // [rows, width], rows in the order (head, query)
  float* const scores = queries + rows * width;        // [rows, kDecodeKeys]
  float* const one_row = scores + rows * kDecodeKeys;  // [width]
  const auto result = [&](int64_t r) { return partial(p, b, kv_head * p.group() + r / p.q_len, r % p.q_len, chunk); };

  for (int64_t g = 0; g < p.group(); ++g)
    copy_rows(row<T>(p.q, p, b, 0, kv_head * p.group() + g), p.q.row_stride, p.q_len, p.head_dim, queries + g * p.q_len * width, width);
  const int64_t seen_from = larger(0, p.first_key(b, 0) - first);
  for (int64_t j = seen_from; j < count; ++j) {
    copy_rows(row<T>(p.k, p, b, first + j, kv_head), 0, 1, p.head_dim, one_row, width);
    for (int64_t r = 0; r < rows; ++r) scores[r * kDecodeKeys + j] = dot(queries + r * width, one_row, columns) * (p.scale * kLog2E);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t i = r % p.q_len;
    const Range keys{larger(0, p.first_key(b, i) - first), smaller(count, p.last_key(i) + 1 - first)};
    weigh(scores + r * kDecodeKeys, round_up(count, kLanes), keys, result(r));
    clear(result(r) + 16, width);
  }
  for (int64_t j = seen_from; j < count; ++j) {
    copy_rows(row<T>(p.v, p, b, first + j, kv_head), 0, 1, p.head_dim, one_row, width);
    for (int64_t r = 0; r < rows; ++r) {
      float* const sum = result(r) + 16;
      const float weight = scores[r * kDecodeKeys + j];
      for (int64_t d = 0; d < columns; d += kLanes) store(sum + d, load(sum + d) + load(one_row + d) * weight);
    }
  }
}

template <class T>
void join(const AttentionProblem& p, int64_t task) {
  const int64_t i = task % p.q_len, head = task / p.q_len % p.heads, b = task / p.q_len / p.heads;
  float maximum = -__builtin_inff(), sum = 0;
  const float* const chunks = partial(p, b, head, i, 0);
  const int64_t step = 16 + p.width();
  for (int64_t c = 0; c < p.decode_chunks(); ++c) maximum = chunks[c * step] > maximum ? chunks[c * step] : maximum;
  const auto share = [&](int64_t c) { return exp2_of_negative(broadcast(chunks[c * step] - maximum))[0]; };
  for (int64_t c = 0; c < p.decode_chunks(); ++c) sum += chunks[c * step + 1] * share(c);
  p.log_sum_exp[task] = (maximum + __builtin_log2f(sum)) * kLn2;
  T* const out = row<T>(p.out, p, b, i, head);
  for (int64_t d = 0; d < p.head_dim; d += kLanes) {
    Float value{};
    for (int64_t c = 0; c < p.decode_chunks(); ++c) value += load(chunks + c * step + 16 + d) * share(c);
    value /= sum;
    if (d + kLanes <= p.head_dim)
      store(out + d, value);
    else
      store_part(out + d, value, p.head_dim - d);
  }
}

}  // namespace

void attention_decode(const AttentionProblem& p, int64_t task, float* scratch) {
  p.is_bf16 ? decode<bf16>(p, task, scratch) : decode<float>(p, task, scratch);
}

int64_t attention_decode_scratch(const AttentionProblem& p) { return p.group() * p.q_len * (p.width() + kDecodeKeys) + p.width(); }

void attention_decode_join(const AttentionProblem& p, int64_t task) { p.is_bf16 ? join<bf16>(p, task) : join<float>(p, task); }

}  // namespace ingot::kernels::cpu::INGOT_ISA
