// Updates of parameters on a GPU, of all that fit a launch: cpu/rows_update.h has the problems, of which a block has a chunk. Bound by
// memory; a thread has vectors of four elements, of tensors that begin between them single ones.
#pragma once

#include "kernels/cpu/rows_update.h"
#include "kernels/gpu/tensor_table.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

inline constexpr int kUpdateThreads = 256, kMostArgumentBytes = 4096;

/// work(how many, from which on) for this thread's elements of a chunk.
template <class Work>
INGOT_DEVICE void for_each_vector(const Chunk& chunk, bool are_aligned, const Work& work) {
  const int64_t end = chunk.begin + chunk.size, whole = are_aligned ? chunk.begin + chunk.size / 4 * 4 : chunk.begin;
  for (int64_t i = chunk.begin + 4 * thread_index(); i < whole; i += 4 * kUpdateThreads) work(Constant<4>{}, i);
  for (int64_t i = whole + thread_index(); i < end; i += kUpdateThreads) work(Constant<1>{}, i);
}

template <int count, class T>
INGOT_DEVICE Vector<T, count> load_vector(const T* from, int64_t at) {
  return *reinterpret_cast<const Vector<T, count>*>(from + at);
}
template <int count, class T>
INGOT_DEVICE void store_vector(T* to, int64_t at, const Vector<T, count>& x) {
  *reinterpret_cast<Vector<T, count>*>(to + at) = x;
}
template <int count>
INGOT_DEVICE void store_bf16(uint16_t* to, int64_t at, const Vector<float, count>& x) {
  if (to == nullptr) return;
  Vector<Bf16, count> narrow;
  INGOT_UNROLL
  for (int k = 0; k < count; ++k) from_float(x.at[k], narrow.at[k]);
  store_vector(reinterpret_cast<Bf16*>(to), at, narrow);
}

INGOT_DEVICE void keep(float x, float& out, uint32_t) { out = x; }
/// As kernels/stochastic_rounding.h says.
INGOT_DEVICE void keep(float x, Bf16& out, uint32_t key) {
  const uint32_t bits = bits_of(x);
  uint32_t hash = bits ^ key;
  hash = (hash ^ (hash >> 16)) * 0x85ebca6bu;
  hash = (hash ^ (hash >> 13)) * 0xc2b2ae35u;
  if (x - x == 0.0f) out.bits = static_cast<uint16_t>((bits + (hash >> 16)) >> 16);
  else from_float(x, out);
}

struct Adamw {
  static constexpr int kThreads = kUpdateThreads;

  static INGOT_DEVICE void run(const cpu::AdamwProblem& p) {
    const auto t = p.of[tensor_of_chunk(p, block_index())];
    t.has_bf16_moments ? update<Bf16>(p, t) : update<float>(p, t);
  }

  template <class Moment>
  static INGOT_DEVICE void update(const cpu::AdamwProblem& p, const cpu::AdamwProblem::Tensor& t) {
    auto *const firsts = static_cast<Moment*>(t.first), *const seconds = static_cast<Moment*>(t.second);
    const bool are_aligned =
        is_aligned(t.master) && is_aligned(t.grad) && is_aligned(firsts) && is_aligned(seconds) && is_aligned(t.narrow);
    for_each_vector(own_chunk(p, t), are_aligned, [&]<int count>(Constant<count>, int64_t at) {
      auto master = load_vector<count>(t.master, at);
      const auto grad = load_vector<count>(t.grad, at);
      auto first = load_vector<count>(firsts, at), second = load_vector<count>(seconds, at);
      INGOT_UNROLL
      for (int k = 0; k < count; ++k) {
        const float g = grad.at[k] * p.gradient_scale;
        const float m = to_float(first.at[k]) * p.beta1 + g * p.rest1, v = to_float(second.at[k]) * p.beta2 + g * g * p.rest2;
        master.at[k] = master.at[k] * t.shrink - m * t.step / (root(v * p.inverse2) + p.eps);
        keep(m, first.at[k], t.rounding_key);
        keep(v, second.at[k], ~t.rounding_key);
      }
      store_vector(firsts, at, first);
      store_vector(seconds, at, second);
      store_vector(t.master, at, master);
      store_bf16(t.narrow, at, master);
    });
  }
};

struct Momentum {
  static constexpr int kThreads = kUpdateThreads;

  static INGOT_DEVICE void run(const cpu::MomentumProblem& p) {
    const auto t = p.of[tensor_of_chunk(p, block_index())];
    t.is_bf16 ? update<Bf16>(p, t) : update<float>(p, t);
  }

  template <class T>
  static INGOT_DEVICE void update(const cpu::MomentumProblem& p, const cpu::MomentumProblem::Tensor& t) {
    auto* const momenta = static_cast<T*>(t.momentum);
    const bool are_aligned = is_aligned(momenta) && is_aligned(t.grad) && is_aligned(t.direction);
    for_each_vector(own_chunk(p, t), are_aligned, [&]<int count>(Constant<count>, int64_t at) {
      auto momentum = load_vector<count>(momenta, at);
      const auto grad = load_vector<count>(t.grad, at);
      Vector<float, count> direction;
      INGOT_UNROLL
      for (int k = 0; k < count; ++k) {
        const float g = grad.at[k] * p.gradient_scale, m = to_float(momentum.at[k]) * p.mu + g;
        direction.at[k] = p.nesterov ? g + m * p.mu : m;
        keep(m, momentum.at[k], t.rounding_key);
      }
      store_vector(momenta, at, momentum);
      store_vector(t.direction, at, direction);
    });
  }
};

struct ApplyDirection {
  static constexpr int kThreads = kUpdateThreads;

  static INGOT_DEVICE void run(const cpu::ApplyProblem& p) {
    const auto t = p.of[tensor_of_chunk(p, block_index())];
    const bool are_aligned = is_aligned(t.master) && is_aligned(t.direction) && is_aligned(t.narrow);
    for_each_vector(own_chunk(p, t), are_aligned, [&]<int count>(Constant<count>, int64_t at) {
      auto master = load_vector<count>(t.master, at);
      const auto direction = load_vector<count>(t.direction, at);
      INGOT_UNROLL
      for (int k = 0; k < count; ++k) master.at[k] = master.at[k] * t.keep - direction.at[k] * t.step;
      store_vector(t.master, at, master);
      store_bf16(t.narrow, at, master);
    });
  }
};

template <class Kernel, class Problem, class Launcher>
auto launch_update(const Problem& p, const Launcher& launcher) {
  static_assert(sizeof p <= kMostArgumentBytes);
  return launcher.template run<Kernel>(p.rows, Kernel::kThreads, p);
}

template <class Launcher>
auto adamw(const cpu::AdamwProblem& p, const Launcher& launcher) {
  return launch_update<Adamw>(p, launcher);
}
template <class Launcher>
auto momentum(const cpu::MomentumProblem& p, const Launcher& launcher) {
  return launch_update<Momentum>(p, launcher);
}
template <class Launcher>
auto apply_direction(const cpu::ApplyProblem& p, const Launcher& launcher) {
  return launch_update<ApplyDirection>(p, launcher);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
