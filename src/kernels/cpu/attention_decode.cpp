// A few queries against a long cache. Algorithm: the keys are cut into chunks of kDecodeKeys; each task reads its chunk of
// one kv head once for all queries of all heads that share it, and leaves maximum, sum and weighted values; decode_join puts
// the chunks together. Keys are read where they lie, without packing. Limit: memory bandwidth, each key and value once.
#include "kernels/cpu/attention_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

constexpr int64_t kScores = kDecodeKeys + 16;  // of one query, with room behind for whole groups of keys

// One chunk's result for one query: {maximum, sum, 14 unused, weighted values [value_width]}.
INGOT_INLINE float* partial(const AttentionProblem& p, int64_t b, int64_t head, int64_t i, int64_t chunk) {
  return p.decode_partials + (((b * p.heads + head) * p.q_len + i) * p.decode_chunks() + chunk) * (16 + p.value_width());
}

// Scores of one query to weights, in place; the maximum and the sum to result[0] and [1].
INGOT_INLINE void weigh(float* scores, Range keys, float* result) {
  const Float lowest = broadcast(-__builtin_inff());
  Float largest = lowest, sum{};
  for (int64_t j = 0; j < kScores; j += kLanes) {
    const Float score = lanes_inside(j, keys) ? load(scores + j) : lowest;
    store(scores + j, score);
    largest = max(largest, score);
  }
  largest = max_of_lanes(largest);
  result[0] = largest[0];
  if (keys.end <= keys.begin) largest = Float{};  // sees nothing here: all weights become 0
  for (int64_t j = 0; j < kScores; j += kLanes) {
    const Float weight = exp2_of_negative(load(scores + j) - largest);
    store(scores + j, weight);
    sum += weight;
  }
  result[1] = sum_of_lanes(sum)[0];
}

// Keys at a time: as many chains of dependent additions, and sums are read and written once for all.
constexpr int64_t kTogether = 4;
static_assert(kPageTokens % kTogether == 0);

struct Chunk {
  const AttentionProblem& p;
  int64_t index, kv_head, batch;
  int64_t first, begin, end;  // first key; the keys that some query sees are among first + [begin, end)
  int64_t rows, width;
  float *queries, *scores, *keys;  // [rows, width], rows in the order (head, query); [rows, kScores]; [kTogether, width or value_width]
  Chunk(const AttentionProblem& problem, int64_t task, float* scratch) : p(problem) {
    index = task % p.decode_chunks(), kv_head = task / p.decode_chunks() % p.kv_heads, batch = task / p.decode_chunks() / p.kv_heads;
    first = index * kDecodeKeys, end = smaller(kDecodeKeys, p.k_len - first);
    begin = round_down(larger(0, p.first_key(batch, 0) - first), kTogether);  // so that keys that go together lie in one page
    rows = p.group() * p.q_len, width = p.width();
    queries = scratch, scores = queries + rows * width, keys = scores + rows * kScores;
  }
  INGOT_INLINE float* result(int64_t r) const { return partial(p, batch, kv_head * p.group() + r / p.q_len, r % p.q_len, index); }
};

// The next rows of keys or values in fp32; rows behind the chunk's end are 0.
template <class T>
INGOT_INLINE void take(const Chunk& chunk, AttentionRows from, int64_t width, int64_t j) {
  const int64_t count = smaller(kTogether, chunk.end - j);
  int64_t key = chunk.first + j;
  if (from.pages != nullptr) from.data = from.pages[key / kPageTokens], key %= kPageTokens;
  copy_rows(row<T>(from, chunk.batch, key, chunk.kv_head), from.row_stride, count, from.head_dim, chunk.keys, width);
  clear(chunk.keys + count * width, (kTogether - count) * width);
}

template <class T>
void score(const Chunk& chunk) {
  const int64_t columns = round_up(chunk.p.head_dim, kLanes);
  for (int64_t j = chunk.begin; j < chunk.end; j += kTogether) {
    take<T>(chunk, chunk.p.k, chunk.width, j);
    for (int64_t r = 0; r < chunk.rows; ++r) {
      const float* const query = chunk.queries + r * chunk.width;
      Float sum[kTogether] = {};
      for (int64_t d = 0; d < columns; d += kLanes)
        for (int64_t key = 0; key < kTogether; ++key) sum[key] += load(query + d) * load(chunk.keys + key * chunk.width + d);
      for (int64_t key = 0; key < kTogether; ++key)
        chunk.scores[r * kScores + j + key] = sum_of_lanes(sum[key])[0] * product_scale(chunk.p);
    }
  }
}

template <class T>
void add_values(const Chunk& chunk) {
  const int64_t columns = round_up(chunk.p.value_dim, kLanes), width = chunk.p.value_width();
  for (int64_t j = chunk.begin; j < chunk.end; j += kTogether) {
    take<T>(chunk, chunk.p.v, width, j);
    for (int64_t r = 0; r < chunk.rows; ++r) {
      float* const out = chunk.result(r) + 16;
      const float* const weights = chunk.scores + r * kScores + j;
      for (int64_t d = 0; d < columns; d += kLanes) {
        Float sum = load(out + d);
        for (int64_t key = 0; key < kTogether; ++key) sum += load(chunk.keys + key * width + d) * weights[key];
        store(out + d, sum);
      }
    }
  }
}

template <class T>
void decode(const AttentionProblem& p, int64_t task, float* scratch) {
  const Chunk chunk(p, task, scratch);
  for (int64_t g = 0; g < p.group(); ++g) {
    const T* const q = row<T>(p.q, chunk.batch, 0, chunk.kv_head * p.group() + g);
    copy_rows(q, p.q.row_stride, p.q_len, p.head_dim, chunk.queries + g * p.q_len * chunk.width, chunk.width);
  }
  score<T>(chunk);
  for (int64_t r = 0; r < chunk.rows; ++r) {
    const int64_t i = r % p.q_len;
    const Range keys{larger(0, p.first_key(chunk.batch, i) - chunk.first),
                     smaller(chunk.end, p.last_key(chunk.batch, i) + 1 - chunk.first)};
    if (p.cap > 0) cap_scores(chunk.scores + r * kScores, kScores, p.cap);
    weigh(chunk.scores + r * kScores, keys, chunk.result(r));
    clear(chunk.result(r) + 16, p.value_width());
  }
  add_values<T>(chunk);
}

template <class T>
void join(const AttentionProblem& p, int64_t task) {
  const int64_t i = task % p.q_len, head = task / p.q_len % p.heads, b = task / p.q_len / p.heads;
  float maximum = -__builtin_inff(), sum = 0;
  const float* const chunks = partial(p, b, head, i, 0);
  const int64_t step = 16 + p.value_width();
  for (int64_t c = 0; c < p.decode_chunks(); ++c) maximum = chunks[c * step] > maximum ? chunks[c * step] : maximum;
  if (maximum == -__builtin_inff()) maximum = 0;  // sees no key: every share is of nothing
  const auto share = [&](int64_t c) { return exp2_of_negative(broadcast(chunks[c * step] - maximum))[0]; };
  for (int64_t c = 0; c < p.decode_chunks(); ++c) sum += chunks[c * step + 1] * share(c);
  p.log_sum_exp[task] = (maximum + __builtin_log2f(sum)) * kLn2;
  const float factor = sum == 0 ? 0 : 1 / sum;
  T* const out = row<T>(p.out, b, i, head);
  for (int64_t d = 0; d < p.value_dim; d += kLanes) {
    Float value{};
    for (int64_t c = 0; c < p.decode_chunks(); ++c) value += load(chunks + c * step + 16 + d) * share(c);
    value *= factor;
    if (d + kLanes <= p.value_dim) store(out + d, value);
    else store_part(out + d, value, p.value_dim - d);
  }
}

}  // namespace

void attention_decode(const AttentionProblem& p, int64_t task, float* scratch) {
  p.is_bf16 ? decode<bf16>(p, task, scratch) : decode<float>(p, task, scratch);
}

int64_t attention_decode_scratch(const AttentionProblem& p) {
  return p.group() * p.q_len * (p.width() + kScores) + kTogether * larger(p.width(), p.value_width());
}

void attention_decode_join(const AttentionProblem& p, int64_t task) { p.is_bf16 ? join<bf16>(p, task) : join<float>(p, task); }

}  // namespace ingot::kernels::cpu::INGOT_ISA
