// CCA's token mixing around the products of the grouped convolution (kernels/cca.h states the operation). Tokens are rows:
//   taps      the depthwise convolution, laid out as the grouped one wants it: per head [previous token | this token]
//   heads     q-k mean, normalisation, temperature, rotation, value shift
// and their gradients in the opposite order. A value that belongs to the next token is looked up there, so that every row of
// every output is written by one row of work.
#include "kernels/cpu/rows_cca.h"

#include "kernels/cpu/rotation.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

constexpr int64_t kMaxHeadDim = 512;
constexpr float kNormFloor = 1.1920929e-7f;  // as the reference: the epsilon of fp32

INGOT_INLINE bool starts(const CcaProblem& p, int64_t row) { return row % p.seq == 0 || (p.is_start && p.is_start[row]); }
// Whether the token after `row` belongs to the same document.
INGOT_INLINE bool continues(const CcaProblem& p, int64_t row) { return row + 1 < p.rows && !starts(p, row + 1); }

template <class T>
void taps(const CcaProblem p, int64_t begin, int64_t end) {  // p by value: no store can change it
  const int64_t d = p.head_dim, heads = p.heads + p.kv_heads;
  for (int64_t row = begin; row < end; ++row) {
    const T *u = static_cast<const T*>(p.packed) + row * p.packed_width(), *before = u - p.packed_width();
    const bool first = starts(p, row), next = continues(p, row);
    for (int64_t head = 0; head < heads; ++head) {
      float* here = p.taps + ((row * heads + head) * 2 + 1) * d;
      float* later = p.taps + (((row + 1) * heads + head) * 2) * d;
      for_vectors(d, [&](int64_t i, auto n) {
        const int64_t channel = head * d + i;
        const Float bias = load_some(p.bias0 + channel, n);
        Float x = fused(load_some(u + channel, n), load_some(p.tap1 + channel, n), bias);
        if (first) store_some(here - d + i, bias, n);
        else x = fused(load_some(before + channel, n), load_some(p.tap0 + channel, n), x);
        store_some(here + i, x, n);
        if (next) store_some(later + i, x, n);
      });
    }
  }
}

// q or k of one head before normalisation: the convolution, its bias, and the q-k mean. Returns the norm.
template <bool is_query, class T>
INGOT_INLINE float latent_head(const CcaProblem& p, const T* u, const float* mixed, int64_t head, float* out) {
  const int64_t d = p.head_dim, groups = p.heads / p.kv_heads, first = head * d;
  const T* others = u + (is_query ? p.heads + head / groups : (head - p.heads) * groups) * d;  // a query's key, or a key's queries
  Float squares{};
  for_vectors(d, [&](int64_t i, auto n) {
    prefetch_ahead(u + first + i), prefetch_ahead(mixed + first + i);
    Float mean = load_some(u + first + i, n);
    if constexpr (is_query) {
      mean += load_some(others + i, n);
    } else {
      Float sum{};
      for (int64_t j = 0; j < groups; ++j) sum += load_some(others + j * d + i, n);
      mean = fused(sum, broadcast(1.0f / static_cast<float>(groups)), mean);
    }
    const Float x = fused(mean, broadcast(0.5f), load_some(mixed + first + i, n) + load_some(p.bias1 + first + i, n));
    store_some(out + i, x, n);
    squares = fused(x, x, squares);
  });
  const float norm = __builtin_sqrtf(sum_of_lanes(squares)[0]);
  return norm < kNormFloor ? kNormFloor : norm;
}

// Heads of a row go together as far as a few KiB hold them: then the roots and quotients of many are under way at once.
struct SomeHeads {
  static constexpr int64_t kMost = 16, kChannels = 2048;
  static_assert(kChannels >= kMaxHeadDim);
  alignas(64) float x[kChannels];
  float norm[kMost];
  int64_t first, count;
};

// visit(heads), of all of p.heads + p.kv_heads in turn.
template <class T, class Visit>
INGOT_INLINE void for_latent_heads(const CcaProblem& p, const T* u, const float* mixed, const Visit& visit) {
  const int64_t most = smaller(SomeHeads::kMost, SomeHeads::kChannels / p.head_dim), all = p.heads + p.kv_heads;
  SomeHeads heads;
  for (heads.first = 0; heads.first < all; heads.first += heads.count) {
    heads.count = smaller(most, all - heads.first);
    for (int64_t at = 0; at < heads.count; ++at) {
      const int64_t head = heads.first + at;
      float* x = heads.x + at * p.head_dim;
      heads.norm[at] = head < p.heads ? latent_head<true>(p, u, mixed, head, x) : latent_head<false>(p, u, mixed, head, x);
    }
    visit(heads);
  }
}

// Of q or k: that of head `head` of row `row`.
template <class T>
INGOT_INLINE T* turned_head(const CcaProblem& p, int64_t row, int64_t head) {
  return head < p.heads ? static_cast<T*>(p.q) + (row * p.heads + head) * p.head_dim
                        : static_cast<T*>(p.k) + (row * p.kv_heads + head - p.heads) * p.head_dim;
}

INGOT_INLINE float temperature_of(const CcaProblem& p, int64_t head) { return head < p.heads ? 1.0f : p.temperature[head - p.heads]; }

template <class T>
void heads_forward(const CcaProblem p, int64_t begin, int64_t end) {  // p by value: no store can change it
  const int64_t d = p.head_dim, values = p.kv_heads * d, delayed_values = values - p.current;
  const float length = __builtin_sqrtf(static_cast<float>(d));
  for (int64_t row = begin; row < end; ++row) {
    const T* u = static_cast<const T*>(p.packed) + row * p.packed_width();
    const Rotation rotation{p.cosine + row % p.table_rows * p.half, p.sine + row % p.table_rows * p.half, p.half};
    for_latent_heads(p, u, p.mixed + row * p.latent(), [&](const SomeHeads& heads) {
      for (int64_t at = 0; at < heads.count; ++at) {
        const float* x = heads.x + at * d;
        const Float factor = broadcast(length / heads.norm[at] * temperature_of(p, heads.first + at));
        const auto scaled = [&](int64_t i, auto n) { return load_some(x + i, n) * factor; };
        rotate_each<false>(scaled, turned_head<T>(p, row, heads.first + at), d, rotation);
      }
    });
    T* v = static_cast<T*>(p.v) + row * values;
    const T *current = u + p.latent(), *delayed = current + p.current - p.packed_width();
    const bool first = starts(p, row);
    for (int64_t i = 0; i < p.current; ++i) v[i] = current[i];
    for (int64_t i = 0; i < delayed_values; ++i) v[p.current + i] = first ? T{} : delayed[i];
  }
}

// The gradient of a row's `mixed`, and its share of the sums.
template <class T>
INGOT_INLINE void norm_backward(const CcaProblem& p, int64_t row, const T* u, float* grad_mixed, float* bias1_sum, float* temperature_sum) {
  const int64_t d = p.head_dim;
  const float length = __builtin_sqrtf(static_cast<float>(d));
  const Rotation rotation{p.cosine + row % p.table_rows * p.half, p.sine + row % p.table_rows * p.half, p.half};
  for_latent_heads(p, u, p.mixed + row * p.latent(), [&](const SomeHeads& heads) {
    // y = c x / |x|: grad x = c / |x| * (g - x (x.g) / |x|^2)
    float factor[SomeHeads::kMost], along[SomeHeads::kMost];
    for (int64_t at = 0; at < heads.count; ++at) {
      const int64_t head = heads.first + at;
      const float *x = heads.x + at * d, norm = heads.norm[at];
      float* g = grad_mixed + head * d;
      rotate_head<true>(turned_head<const T>(p, row, head), g, d, rotation);
      Float dots{};
      for_vectors(d, [&](int64_t i, auto n) { dots = fused(load_some(g + i, n), load_some(x + i, n), dots); });
      const float dot = sum_of_lanes(dots)[0];
      factor[at] = length * temperature_of(p, head) / norm;
      along[at] = dot / (norm * norm);
      if (head >= p.heads) temperature_sum[head - p.heads] += dot * length / norm;
    }
    for (int64_t at = 0; at < heads.count; ++at) {
      const float* x = heads.x + at * d;
      const int64_t first = (heads.first + at) * d;
      for_vectors(d, [&](int64_t i, auto n) {
        const Float less = load_some(x + i, n) * along[at], gx = (load_some(grad_mixed + first + i, n) - less) * factor[at];
        store_some(grad_mixed + first + i, gx, n);
        add_to(bias1_sum, first + i, gx, n);
      });
    }
  });
}

template <class T>
void heads_backward(const CcaProblem p, int64_t begin, int64_t end, float* sums) {
  const int64_t d = p.head_dim, values = p.kv_heads * d, groups = p.heads / p.kv_heads, latent = p.latent();
  for (int64_t row = begin; row < end; ++row) {
    const T* u = static_cast<const T*>(p.packed) + row * p.packed_width();
    float* grad_mixed = p.grad_mixed + row * latent;
    norm_backward(p, row, u, grad_mixed, sums, sums + latent);
    // The mean's share of the latent's gradient; the convolution's is added by cca_taps_backward.
    T* grad_u = static_cast<T*>(p.grad_packed) + row * p.packed_width();
    for (int64_t kv = 0; kv < p.kv_heads; ++kv) {
      const float* grad_k = grad_mixed + (p.heads + kv) * d;
      for (int64_t i = 0; i < d; i += kLanes) {
        const int64_t n = d - i;
        const Float from_k = load_some(grad_k + i, n);
        Float queries{};
        for (int64_t j = 0; j < groups; ++j) {
          const int64_t channel = (kv * groups + j) * d + i;
          const Float gq = load_some(grad_mixed + channel, n);
          queries += gq;
          store_some(grad_u + channel, gq * 0.5f + from_k * (0.5f / static_cast<float>(groups)), n);
        }
        store_some(grad_u + (p.heads + kv) * d + i, (queries + from_k) * 0.5f, n);
      }
    }
    const T *grad_v = static_cast<const T*>(p.v) + row * values, *grad_v_next = grad_v + values;
    const bool next = continues(p, row);
    for (int64_t i = 0; i < p.current; ++i) grad_u[latent + i] = grad_v[i];
    for (int64_t i = p.current; i < values; ++i) grad_u[latent + i] = next ? grad_v_next[i] : T{};
  }
}

// Whether a row's document goes on behind it, and behind the row after it.
struct Ahead {
  bool next, second;
};

template <class T>
INGOT_INLINE void taps_backward_of_row(const CcaProblem& p, int64_t row, bool first, Ahead ahead, float* sums) {
  const int64_t d = p.head_dim, heads = p.heads + p.kv_heads, latent = p.latent();
  const T *u = static_cast<const T*>(p.packed) + row * p.packed_width(), *before = u - p.packed_width();
  T* grad_u = static_cast<T*>(p.grad_packed) + row * p.packed_width();
  for (int64_t head = 0; head < heads; ++head) {
    // Gradients of the first convolution's output at a token: as "this token", and as "previous token" of the next one.
    const float* of_token = p.grad_taps + ((row * heads + head) * 2 + 1) * d;
    const int64_t step = 2 * latent;
    for_vectors(d, [&](int64_t i, auto n) {
      const int64_t channel = head * d + i;
      prefetch_ahead(of_token + step + i), prefetch_ahead(of_token + step - d + i), prefetch_ahead(u + channel),
          prefetch_ahead(grad_u + channel);
      Float g = load_some(of_token + i, n);
      if (ahead.next) g += load_some(of_token + step - d + i, n);
      add_to(sums + latent, channel, g * load_some(u + channel, n), n);
      add_to(sums + 2 * latent, channel, first ? g + load_some(of_token - d + i, n) : g, n);
      if (!first) add_to(sums, channel, g * load_some(before + channel, n), n);
      Float gu = fused(g, load_some(p.tap1 + channel, n), load_some(grad_u + channel, n));
      if (ahead.next) {
        Float after = load_some(of_token + step + i, n);
        if (ahead.second) after += load_some(of_token + 2 * step - d + i, n);
        gu = fused(after, load_some(p.tap0 + channel, n), gu);
      }
      store_some(grad_u + channel, gu, n);
    });
  }
}

// Sums: tap0, tap1, bias0.
template <class T>
void taps_backward(const CcaProblem p, int64_t begin, int64_t end, float* sums) {
  for (int64_t row = begin; row < end; ++row) {
    const bool next = continues(p, row);
    taps_backward_of_row<T>(p, row, starts(p, row), {next, next && continues(p, row + 1)}, sums);
  }
}

}  // namespace

void cca_taps(const CcaProblem& p, int64_t begin, int64_t end) { p.is_bf16 ? taps<bf16>(p, begin, end) : taps<float>(p, begin, end); }
void cca_heads(const CcaProblem& p, int64_t begin, int64_t end) {
  p.is_bf16 ? heads_forward<bf16>(p, begin, end) : heads_forward<float>(p, begin, end);
}
void cca_heads_backward(const CcaProblem& p, int64_t begin, int64_t end, float* sums) {
  p.is_bf16 ? heads_backward<bf16>(p, begin, end, sums) : heads_backward<float>(p, begin, end, sums);
}
void cca_taps_backward(const CcaProblem& p, int64_t begin, int64_t end, float* sums) {
  p.is_bf16 ? taps_backward<bf16>(p, begin, end, sums) : taps_backward<float>(p, begin, end, sums);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
