// For tests: random tensors, packed documents, and how far results lie apart.
#pragma once

#include "device/aten.h"
#include "device/test_device.h"

namespace ingot::layers {

/// Normal, fp64, a function of the seed.
inline at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kDouble);
}

/// int32 [batch, seq]: where each token's document begins. Documents of lengths 1 to 7 and, in the first row, one that goes over several
/// chunks.
inline at::Tensor documents_of(int64_t batch, int64_t seq) {
  auto starts = at::zeros({batch, seq}, at::kInt);
  auto at = starts.accessor<int32_t, 2>();
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t i = 1; i < seq; ++i)
      at[b][i] = (i * (b + 2) * 2654435761 >> 5) % (b == 0 ? 11 : 4) == 1 ? static_cast<int32_t>(i) : at[b][i - 1];
  return starts;
}

/// The largest difference, relative to the largest magnitude expected (at least 0.1); 1e9 for other shapes.
inline double error_of(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes()) return 1e9;
  const auto a = actual.detach().cpu().to(at::kDouble), b = expected.detach().cpu().to(at::kDouble);
  return ((a - b).abs().max() / b.abs().max().clamp_min(0.1)).item<double>();
}

}  // namespace ingot::layers
