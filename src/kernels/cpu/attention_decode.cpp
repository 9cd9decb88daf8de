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

// Scores of keys j to j + kTogether for kRows rows, 1 or 2: of two rows half as many keys at a time, so that there are as many sums.
template <int kRows, bool kIsWhole, class T>
INGOT_INLINE void score_rows(const Chunk& chunk, const T* keys, int64_t j, int64_t r) {
  constexpr int kKeys = kTogether / kRows;
  const int64_t dim = chunk.p.head_dim, step = chunk.p.k.row_stride,
                last = chunk.end - j - 1;  // scores of keys behind it are not looked at
  const float* const query = chunk.queries + r * chunk.width;
  for (int64_t first = 0; first < kTogether; first += kKeys) {
    Float sums[kTogether] = {};
    for (int64_t d = 0; d < dim; d += kLanes) {
      Float q[kRows];
      for (int row = 0; row < kRows; ++row) q[row] = load(query + row * chunk.width + d);
      for (int key = 0; key < kKeys; ++key) {
        const T* const from = keys + smaller(first + key, last) * step;
        const Float k = kIsWhole ? load(from + d) : columns(from, d, dim);
        for (int row = 0; row < kRows; ++row) sums[row * kKeys + key] = fused(q[row], k, sums[row * kKeys + key]);
      }
    }
    const Float scores = sums_of_lanes(sums) * product_scale(chunk.p);
    for (int row = 0; row < kRows; ++row)
      __builtin_memcpy(chunk.scores + (r + row) * kScores + j + first, reinterpret_cast<const float*>(&scores) + row * kKeys,
                       kKeys * sizeof(float));
  }
}

template <bool kIsWhole, class T>
void score(const Chunk& chunk) {
  for (int64_t j = chunk.begin; j < chunk.end; j += kTogether) {
    const T* const keys = rows_from<T>(chunk, chunk.p.k, j);
    int64_t r = 0;
    for (; r + 2 <= chunk.rows; r += 2) score_rows<2, kIsWhole>(chunk, keys, j, r);
    if (r < chunk.rows) score_rows<1, kIsWhole>(chunk, keys, j, r);
  }
}

// Columns [d, d + kCount * kLanes) of the weighted values of kRows rows, of `keys` keys of one page from j on.
template <int kCount, int kRows, class T>
INGOT_INLINE void add_columns(const Chunk& chunk, const T* values, int64_t keys, int64_t j, int64_t r, int64_t d) {
  const int64_t dim = kCount > 1 ? d + kCount * kLanes : chunk.p.value_dim;
  float* out[kRows];
  const float* weights[kRows];
  Float sums[kRows][kCount];
  for (int row = 0; row < kRows; ++row) {
    out[row] = chunk.result(r + row) + 16 + d, weights[row] = chunk.scores + (r + row) * kScores + j;
    for (int c = 0; c < kCount; ++c) sums[row][c] = load(out[row] + c * kLanes);
  }
  for (int64_t key = 0; key < keys; ++key, values += chunk.p.v.row_stride)
    for (int c = 0; c < kCount; ++c) {
      const Float value = columns(values, d + c * kLanes, dim);
      for (int row = 0; row < kRows; ++row) sums[row][c] = fused(value, broadcast(weights[row][key]), sums[row][c]);
    }
  for (int row = 0; row < kRows; ++row)
    for (int c = 0; c < kCount; ++c) store(out[row] + c * kLanes, sums[row][c]);
}

template <class T>
void add_values(const Chunk& chunk) {
  constexpr int kCount = 4;
  for (int64_t j = chunk.begin, next; j < chunk.end; j = next) {
    next = smaller(chunk.end, round_down(j, kPageTokens) + kPageTokens);
    const T* const values = rows_from<T>(chunk, chunk.p.v, j);
    int64_t d = 0;
    for (; d + kCount * kLanes <= chunk.p.value_dim; d += kCount * kLanes) {
      int64_t r = 0;
      for (; r + 2 <= chunk.rows; r += 2) add_columns<kCount, 2>(chunk, values, next - j, j, r, d);
      if (r < chunk.rows) add_columns<kCount, 1>(chunk, values, next - j, j, r, d);
    }
    for (; d < chunk.p.value_dim; d += kLanes)
      for (int64_t r = 0; r < chunk.rows; ++r) add_columns<1, 1>(chunk, values, next - j, j, r, d);
  }
}

template <class T>
void decode(const AttentionProblem& p, int64_t task, float* scratch) {
  const Chunk chunk(p, task, scratch);
  for (int64_t g = 0; g < p.group(); ++g) {
    const T* const q = row<T>(p.q, chunk.batch, 0, chunk.kv_head * p.group() + g);
    copy_rows(q, p.q.row_stride, p.q_len, p.head_dim, chunk.queries + g * p.q_len * chunk.width, chunk.width);
  }
  if (p.head_dim % kLanes == 0) score<true, T>(chunk);
  else score<false, T>(chunk);
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
