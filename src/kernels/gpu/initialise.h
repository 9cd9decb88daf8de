// Initial values of parameters on a GPU, with the bits that the host gives them (tensor/initialise.h). A thread has a pair of elements of
// the stream, of which a row may begin or end with one. Bound by arithmetic in fp64.
#pragma once

#include "base/random_functions.h"
#include "kernels/gpu/dialect.h"
#include "kernels/gpu/initialise_problem.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

template <int bytes>
struct ElementOf;
template <>
struct ElementOf<2> {
  using Type = Bf16;
};
template <>
struct ElementOf<4> {
  using Type = float;
};
template <>
struct ElementOf<8> {
  using Type = double;
};

template <int bytes>
struct FillNormal {
  using T = typename ElementOf<bytes>::Type;
  static constexpr int kThreads = 256, kMostBlocks = 2048;

  static INGOT_DEVICE void run(const InitialiseProblem& p) {
    const int64_t pairs = p.width / 2 + 1;  // of a row, which may have half of the first one and of the last
    for (int64_t i = block_index() * kThreads + thread_index(); i < p.rows * pairs; i += grid_blocks() * kThreads) {
      const int64_t row = p.rows == 1 ? 0 : i / pairs;  // a tensor may have more than 2^32
      const uint64_t first = p.first + static_cast<uint64_t>(row * p.stride), pair = first / 2 + static_cast<uint64_t>(i - row * pairs);
      const base::NormalPair normals = base::normal_pair(p.key, pair);
      T* const out = static_cast<T*>(p.out) + row * p.out_stride;
      const auto column = static_cast<int64_t>(2 * pair - first);  // -1 where the row begins with the odd one
      if (column >= 0 && column < p.width) from_float(base::scaled_normal(normals.even, p.mean, p.deviation), out[column]);
      if (column + 1 < p.width) from_float(base::scaled_normal(normals.odd, p.mean, p.deviation), out[column + 1]);
    }
  }
};

template <class Launcher>
auto fill_normal(const InitialiseProblem& p, const Launcher& launcher) {
  const auto with = [&]<int bytes>(Constant<bytes>) {
    using Kernel = FillNormal<bytes>;
    const int64_t blocks = (p.rows * (p.width / 2 + 1) + Kernel::kThreads - 1) / Kernel::kThreads;
    return launcher.template run<Kernel>(blocks < Kernel::kMostBlocks ? blocks : Kernel::kMostBlocks, Kernel::kThreads, p);
  };
  if (p.element_bytes == 2) return with(Constant<2>{});
  if (p.element_bytes == 4) return with(Constant<4>{});
  return with(Constant<8>{});
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
