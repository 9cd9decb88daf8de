// For tests of layers: leaves and parameters on the device under test, and how near results must be.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels/differentiable.h"
#include "kernels/reference/reference.h"
#include "layers/parameter.h"
#include "layers/test_tensors.h"

namespace ingot::layers::test {

inline at::Tensor random(at::IntArrayRef sizes, uint64_t seed) { return layers::random(sizes, seed).to(device::test_device()); }
inline at::Tensor there(const at::Tensor& host) { return host.to(device::test_device()); }

inline Parameter& add(ParameterList& list, const std::string& name, at::IntArrayRef sizes, uint64_t seed) {
  auto& p = list.add({.name = name, .shape = sizes.vec(), .kind = Parameter::Kind::matrix});
  p.value = random(sizes, seed).set_requires_grad(true);
  return p;
}

inline void backward(const at::Tensor& loss) { kernels::backward({loss}); }

inline void expect_close(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-11) {
  ASSERT_EQ(a.sizes(), b.sizes());
  EXPECT_LT((a - b).abs().max().item<double>(), tolerance * (1 + b.abs().max().item<double>()));
}

// Rounded along the dimension that is summed over, by the tiles of MXFP8.
inline at::Tensor in_mxfp8(const at::Tensor& x, int64_t summed) {
  return kernels::reference::round_to_fp8(x.detach().to(at::kFloat), summed == 0 ? 32 : 1, summed == 0 ? 1 : 32, at::kFloat8_e4m3fn)
      .to(at::kDouble);
}

inline void expect_near(const at::Tensor& found, const at::Tensor& expected, double tolerance, const char* what) {
  EXPECT_LE((found.to(at::kDouble) - expected).norm().item<double>(), tolerance * expected.norm().item<double>() + 1e-6) << what;
}

}  // namespace ingot::layers::test
