#include "kernels/cpu/gemm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace ingot::kernels::cpu {
namespace {

// [rows, columns] somewhere inside a wider matrix, by rows or by columns.
at::Tensor stored(int64_t rows, int64_t columns, bool transposed) {
  auto wide = at::randn(transposed ? at::IntArrayRef{columns + 3, rows + 5} : at::IntArrayRef{rows + 3, columns + 5});
  if (transposed) wide = wide.t();
  return wide.narrow(0, 1, rows).narrow(1, 2, columns);
}

Factor factor(const at::Tensor& x, bool transposed) { return {x.const_data_ptr<float>(), x.stride(transposed ? 1 : 0), transposed}; }

TEST(Gemm, equals_the_product_in_fp64_for_every_storage_and_scaling) {
  at::manual_seed(1);
  for (const auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1}, {3, 70, 5}, {64, 33, 129}, {17, 1, 40}, {5, 6, 0}})
    for (const bool a_transposed : {false, true})
      for (const bool b_transposed : {false, true})
        for (const auto [alpha, beta] : {std::pair{1.0f, 0.0f}, {0.5f, 1.0f}, {-2.0f, 0.25f}}) {
          const auto a = stored(m, k, a_transposed), b = stored(k, n, b_transposed);
          auto c = stored(m, n, false);
          if (beta == 0) c.fill_(std::numeric_limits<float>::quiet_NaN());
          const auto before = beta == 0 ? at::zeros({m, n}, at::kDouble) : c.to(at::kDouble);
          const auto expected = at::mm(a.to(at::kDouble), b.to(at::kDouble)) * alpha + before * beta;
          gemm(m, n, k, alpha, factor(a, a_transposed), factor(b, b_transposed), beta, c.mutable_data_ptr<float>(), c.stride(0));
          EXPECT_TRUE(at::allclose(c.to(at::kDouble), expected, 1e-5, 1e-5))
              << m << " " << n << " " << k << " " << a_transposed << b_transposed << " " << alpha << " " << beta;
        }
}

TEST(Gemm, writes_nothing_outside_of_its_matrix) {
  const auto a = at::ones({4, 4}), around = at::full({8, 8}, 7.0f);
  const auto part = around.narrow(0, 2, 4).narrow(1, 2, 4);
  gemm(4, 4, 4, 1, {a.const_data_ptr<float>(), 4}, {a.const_data_ptr<float>(), 4}, 0, part.mutable_data_ptr<float>(), 8);
  EXPECT_EQ(around.sum().item<float>(), 48 * 7 + 16 * 4);
}

}  // namespace
}  // namespace ingot::kernels::cpu
