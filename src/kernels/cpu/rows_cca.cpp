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
void taps(const CcaProblem& p, int64_t begin, int64_t end) {
  const int64_t d = p.head_dim, heads = p.heads + p.kv_heads;
  for (int64_t row = begin; row < end; ++row) {
    const T* u = static_cast<const T*>(p.packed) + row * p.packed_width();
    const bool first = starts(p, row), next = continues(p, row);
    for (int64_t head = 0; head < heads; ++head) {
      float* here = p.taps + ((row * heads + head) * 2 + 1) * d;
      float* later = p.taps + (((row + 1) * heads + head) * 2) * d;
      for (int64_t i = 0; i < d; i += kLanes) {
        const int64_t n = d - i, channel = head * d + i;
        const Float bias = load_some(p.bias0 + channel, n);
        Float x = load_some(u + channel, n) * load_some(p.tap1 + channel, n) + bias;
        if (first) store_some(here - d + i, bias, n);
        else x += load_some(u + channel - p.packed_width(), n) * load_some(p.tap0 + channel, n);
        store_some(here + i, x, n);
        if (next) store_some(later + i, x, n);
      }
    }
  }
}

// q or k of one head before normalisation: the convolution, its bias, and the q-k mean. Returns the norm.
template <class T>
INGOT_INLINE float latent_head(const CcaProblem& p, const T* u, const float* mixed, int64_t head, float* out) {
  const int64_t d = p.head_dim, groups = p.heads / p.kv_heads;
  const bool is_query = head < p.heads;
  Float squares{};
  for (int64_t i = 0; i < d; i += kLanes) {
    const int64_t n = d - i, channel = head * d + i;
    Float mean;
    if (is_query) {
      mean = (load_some(u + channel, n) + load_some(u + (p.heads + head / groups) * d + i, n)) * 0.5f;
    } else {
      Float queries{};
      for (int64_t j = 0; j < groups; ++j) queries += load_some(u + ((head - p.heads) * groups + j) * d + i, n);
      mean = (queries * (1.0f / static_cast<float>(groups)) + load_some(u + channel, n)) * 0.5f;
    }
    const Float x = load_some(mixed + channel, n) + load_some(p.bias1 + channel, n) + mean;
    store_some(out + i, x, n);
    squares += n < kLanes ? x * x * first_lanes(n) : x * x;
  }
  const float norm = __builtin_sqrtf(sum_of_lanes(squares)[0]);
  return norm < kNormFloor ? kNormFloor : norm;
}

template <class T>
void heads_forward(const CcaProblem& p, int64_t begin, int64_t end) {
  const int64_t d = p.head_dim, values = p.kv_heads * d, delayed_values = values - p.current;
  const float length = __builtin_sqrtf(static_cast<float>(d));
  alignas(64) float x[kMaxHeadDim];
  for (int64_t row = begin; row < end; ++row) {
    const T* u = static_cast<const T*>(p.packed) + row * p.packed_width();
    const Rotation rotation{p.cosine + row % p.table_rows * p.half, p.sine + row % p.table_rows * p.half, p.half};
    for (int64_t head = 0; head < p.heads + p.kv_heads; ++head) {
      const bool is_query = head < p.heads;
      const float norm = latent_head(p, u, p.mixed + row * p.latent(), head, x);
      const float factor = length / norm * (is_query ? 1.0f : p.temperature[head - p.heads]);
      for (int64_t i = 0; i < d; i += kLanes) store_some(x + i, load_some(x + i, d - i) * factor, d - i);
      T* out =
          is_query ? static_cast<T*>(p.q) + (row * p.heads + head) * d : static_cast<T*>(p.k) + (row * p.kv_heads + head - p.heads) * d;
      rotate_head<false>(x, out, d, rotation);
    }
    T* v = static_cast<T*>(p.v) + row * values;
    const T *current = u + p.latent(), *delayed = current + p.current - p.packed_width();
    const bool first = starts(p, row);
    for (int64_t i = 0; i < p.current; ++i) v[i] = current[i];
    for (int64_t i = 0; i < delayed_values; ++i) v[p.current + i] = first ? T{} : delayed[i];
  }
}

template <class T>
void heads_backward(const CcaProblem& p, int64_t begin, int64_t end, float* sums) {
  const int64_t d = p.head_dim, values = p.kv_heads * d, groups = p.heads / p.kv_heads, latent = p.latent();
  const float length = __builtin_sqrtf(static_cast<float>(d));
  float *bias1_sum = sums, *temperature_sum = sums + latent;
  alignas(64) float x[kMaxHeadDim], g[kMaxHeadDim];
  for (int64_t row = begin; row < end; ++row) {
    const T* u = static_cast<const T*>(p.packed) + row * p.packed_width();
    float* grad_mixed = p.grad_mixed + row * latent;
    const Rotation rotation{p.cosine + row % p.table_rows * p.half, p.sine + row % p.table_rows * p.half, p.half};
    for (int64_t head = 0; head < p.heads + p.kv_heads; ++head) {
      const bool is_query = head < p.heads;
      const T* grad = is_query ? static_cast<const T*>(p.q) + (row * p.heads + head) * d
                               : static_cast<const T*>(p.k) + (row * p.kv_heads + head - p.heads) * d;
      const float norm = latent_head(p, u, p.mixed + row * latent, head, x);
      rotate_head<true>(grad, g, d, rotation);
      Float dots{};
      for (int64_t i = 0; i < d; i += kLanes) {
        const Float product = load_some(g + i, d - i) * load_some(x + i, d - i);
        dots += d - i < kLanes ? product * first_lanes(d - i) : product;
      }
      const float dot = sum_of_lanes(dots)[0];
      const float temperature = is_query ? 1.0f : p.temperature[head - p.heads];
      if (!is_query) temperature_sum[head - p.heads] += dot * length / norm;
      // y = c x / |x|: grad x = c / |x| * (g - x (x.g) / |x|^2)
      const float factor = length * temperature / norm, along = dot / (norm * norm);
      for (int64_t i = 0; i < d; i += kLanes) {
        const int64_t n = d - i;
        const Float gx = (load_some(g + i, n) - load_some(x + i, n) * along) * factor;
        store_some(grad_mixed + head * d + i, gx, n);
        store_some(bias1_sum + head * d + i, load_some(bias1_sum + head * d + i, n) + gx, n);
      }
    }
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

template <class T>
void taps_backward(const CcaProblem& p, int64_t begin, int64_t end, float* sums) {
  const int64_t d = p.head_dim, heads = p.heads + p.kv_heads, latent = p.latent();
  float *tap0_sum = sums, *tap1_sum = sums + latent, *bias0_sum = sums + 2 * latent;
  // Gradient of the first convolution's output at a token: as "this token", and as "previous token" of the next one.
  const auto grad_first = [&](int64_t row, int64_t head, int64_t i, int64_t n) {
    Float g = load_some(p.grad_taps + ((row * heads + head) * 2 + 1) * d + i, n);
    if (continues(p, row)) g += load_some(p.grad_taps + (((row + 1) * heads + head) * 2) * d + i, n);
    return g;
  };
  for (int64_t row = begin; row < end; ++row) {
    const T* u = static_cast<const T*>(p.packed) + row * p.packed_width();
    T* grad_u = static_cast<T*>(p.grad_packed) + row * p.packed_width();
    const bool first = starts(p, row), next = continues(p, row);
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t i = 0; i < d; i += kLanes) {
        const int64_t n = d - i, channel = head * d + i;
        const auto add = [&](float* sum, Float x) { store_some(sum + channel, load_some(sum + channel, n) + x, n); };
        const Float g = grad_first(row, head, i, n);
        add(tap1_sum, g * load_some(u + channel, n));
        add(bias0_sum, first ? g + load_some(p.grad_taps + ((row * heads + head) * 2) * d + i, n) : g);
        if (!first) add(tap0_sum, g * load_some(u + channel - p.packed_width(), n));
        Float gu = load_some(grad_u + channel, n) + g * load_some(p.tap1 + channel, n);
        if (next) gu += grad_first(row + 1, head, i, n) * load_some(p.tap0 + channel, n);
        store_some(grad_u + channel, gu, n);
      }
    }
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
