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

// Keys whose products are made together: as many chains of dependent additions as the sums of lanes take vectors.
constexpr int64_t kTogether = kLanes;
static_assert(kPageTokens % kTogether == 0);

struct Chunk {
  const AttentionProblem& p;
  int64_t index, kv_head, batch;
  int64_t first, begin, end;  // first key; the keys that some query sees are among first + [begin, end)
  int64_t rows, width;
  float *queries, *scores;  // [rows, width], rows in the order (head, query), 0 behind head_dim; [rows, kScores]
  Chunk(const AttentionProblem& problem, int64_t task, float* scratch) : p(problem) {
    index = task % p.decode_chunks(), kv_head = task / p.decode_chunks() % p.kv_heads, batch = task / p.decode_chunks() / p.kv_heads;
    first = index * kDecodeKeys, end = smaller(kDecodeKeys, p.k_len - first);
    begin = round_down(larger(0, p.first_key(batch, 0) - first), kTogether);  // so that keys that go together lie in one page
    rows = p.group() * p.q_len, width = p.width();
    queries = scratch, scores = queries + rows * width;
  }
  INGOT_INLINE float* result(int64_t r) const { return partial(p, batch, kv_head * p.group() + r / p.q_len, r % p.q_len, index); }
};

// Where row j of the chunk lies, and those behind it up to the end of its page.
template <class T>
INGOT_INLINE const T* rows_from(const Chunk& chunk, AttentionRows from, int64_t j) {
  int64_t key = chunk.first + j;
  if (from.pages != nullptr) from.data = from.pages[key / kPageTokens], key %= kPageTokens;
  return row<T>(from, chunk.batch, key, chunk.kv_head);
}

// Columns [d, d + kLanes) of a row of `dim`, 0 behind its end.
template <class T>
INGOT_INLINE Float columns(const T* row, int64_t d, int64_t dim) {
  return d + kLanes <= dim ? load(row + d) : load_part(row + d, dim - d);
}

template <class T>
void score(const Chunk& chunk) {
  const int64_t dim = chunk.p.head_dim, step = chunk.p.k.row_stride;
  for (int64_t j = chunk.begin; j < chunk.end; j += kTogether) {
    const T* const keys = rows_from<T>(chunk, chunk.p.k, j);
    const int64_t last = chunk.end - j - 1;  // scores of the keys behind it are not looked at
    for (int64_t r = 0; r < chunk.rows; ++r) {
      const float* const query = chunk.queries + r * chunk.width;
      Float sums[kTogether] = {};
      for (int64_t d = 0; d < dim; d += kLanes) {
        const Float q = load(query + d);
        for (int64_t key = 0; key < kTogether; ++key) sums[key] += q * columns(keys + smaller(key, last) * step, d, dim);
      }
      store(chunk.scores + r * kScores + j, sums_of_lanes(sums) * product_scale(chunk.p));
    }
  }
}

// Columns [d, d + count * kLanes) of the weighted values, of the keys of one page.
template <int kCount, class T>
INGOT_INLINE void add_columns(const T* values, int64_t step, const float* weights, int64_t keys, int64_t d, int64_t dim, float* out) {
  Float sums[kCount];
  for (int c = 0; c < kCount; ++c) sums[c] = load(out + d + c * kLanes);
  for (int64_t key = 0; key < keys; ++key, values += step)
    for (int c = 0; c < kCount; ++c) sums[c] += columns(values, d + c * kLanes, kCount > 1 ? d + kCount * kLanes : dim) * weights[key];
  for (int c = 0; c < kCount; ++c) store(out + d + c * kLanes, sums[c]);
}

template <class T>
void add_values(const Chunk& chunk) {
  constexpr int kCount = 4;
  const int64_t dim = chunk.p.value_dim, step = chunk.p.v.row_stride;
  for (int64_t j = chunk.begin, next; j < chunk.end; j = next) {
    next = smaller(chunk.end, round_down(j, kPageTokens) + kPageTokens);
    const T* const values = rows_from<T>(chunk, chunk.p.v, j);
    for (int64_t r = 0; r < chunk.rows; ++r) {
      float* const out = chunk.result(r) + 16;
      const float* const weights = chunk.scores + r * kScores + j;
      int64_t d = 0;
      for (; d + kCount * kLanes <= dim; d += kCount * kLanes) add_columns<kCount>(values, step, weights, next - j, d, dim, out);
      for (; d < dim; d += kLanes) add_columns<1>(values, step, weights, next - j, d, dim, out);
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

int64_t attention_decode_scratch(const AttentionProblem& p) { return p.group() * p.q_len * (p.width() + kScores); }

void attention_decode_join(const AttentionProblem& p, int64_t task) { p.is_bf16 ? join<bf16>(p, task) : join<float>(p, task); }

}  // namespace ingot::kernels::cpu::INGOT_ISA
