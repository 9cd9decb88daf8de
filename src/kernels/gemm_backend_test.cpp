#include "kernels/gemm_backend.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu_matmul.h"
#include "kernels/matmul.h"

namespace ingot::kernels {
namespace {

struct Libraries : ::testing::Test {
  ~Libraries() override { use_gemm_backend(GemmBackend::standard); }
};

TEST_F(Libraries, all_multiply_and_add_up_to_rounding) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;
    for (const auto library : gemm_backends(dtype, at::kCPU)) {
      use_gemm_backend(library);
      ASSERT_EQ(gemm_backend(), library);
      for (const int64_t m : {1, 17, 64})
        for (const bool transposed : {false, true}) {
          const auto a = (transposed ? at::randn({33, m}).t() : at::randn({m, 33})).to(dtype);
          const auto b = (transposed ? at::randn({48, 33}).t() : at::randn({33, 48})).to(dtype);
          const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
          // fp32 results are sums in fp32, whatever the operands are.
          const auto close = [&](const at::Tensor& result, const at::Tensor& wanted) {
            const double most = 33 * (result.scalar_type() == at::kFloat ? 1e-5 : tolerance);
            EXPECT_LT((result.to(at::kDouble) - wanted).abs().max().item<double>(), most) << name_of(library) << " " << m;
          };
          close(matmul(a, b, dtype), exact);
          close(matmul(a, b, at::kFloat), exact);
          const auto wide = at::ones({m, 100});  // a view with strided rows
          matmul_into(wide.narrow(1, 10, 48), a, b, true);
          close(wide.narrow(1, 10, 48), exact);
          matmul_into(wide.narrow(1, 10, 48), a, b, false);
          close(wide.narrow(1, 10, 48), 2 * exact);
          EXPECT_EQ(wide.narrow(1, 0, 10).min().item<float>(), 1) << "beside the view";
        }
    }
  }
}

TEST_F(Libraries, sums_of_bf16_take_operands_as_they_lie) {
  const auto wide = at::randn({70, 90}), narrow = wide.to(at::kBFloat16);
  const auto expect_exact = [](const at::Tensor& a, const at::Tensor& b) {
    const auto out = at::full({a.size(0), b.size(1)}, 7.0);
    matmul_into(out, a, b, true);
    const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
    EXPECT_TRUE(at::allclose(out.to(at::kDouble), exact, 1e-5, 1e-5)) << a.sizes() << a.strides() << b.sizes() << b.strides();
  };
  const auto rows = narrow.narrow(0, 3, 20), columns = narrow.narrow(1, 5, 20), every_second = narrow.slice(1, 0, 80, 4);
  for (const auto& a :
       {rows, rows.t(), columns, columns.t(), every_second, every_second.t(), narrow.narrow(0, 0, 1), narrow.narrow(1, 0, 1)})
    for (const auto& b : {at::randn({a.size(1), 33}), at::randn({33, a.size(1)}).t(), at::randn({a.size(1), 99}).slice(1, 0, 99, 3)})
      expect_exact(a, b.to(at::kBFloat16));
  expect_exact(narrow.narrow(1, 0, 0), narrow.narrow(0, 0, 0));  // of nothing: zeros
  expect_exact(narrow.narrow(0, 0, 0), narrow.t());
}

TEST_F(Libraries, a_choice_reaches_the_gemms) {
  const auto choices = gemm_backends(at::kFloat, at::kCPU);
  if (std::find(choices.begin(), choices.end(), GemmBackend::onednn) == choices.end()) GTEST_SKIP() << "this torch has no oneDNN";
  const auto a = at::randn({17, 2048}), b = at::randn({2048, 100});
  if (at::equal(multiply_by_onednn(a, b), at::mm(a, b))) GTEST_SKIP() << "the libraries round alike here, and nothing tells them apart";
  const auto into = [&] {
    auto out = at::empty({17, 100});
    matmul_into(out, a, b, true);
    return out;
  };
  use_gemm_backend(GemmBackend::onednn);
  EXPECT_TRUE(at::equal(matmul(a, b, at::kFloat), multiply_by_onednn(a, b)));
  EXPECT_TRUE(at::equal(into(), multiply_by_onednn(a, b)));
  use_gemm_backend(prefers_cpu_matmul(at::kFloat) ? GemmBackend::blas : GemmBackend::standard);
  EXPECT_TRUE(at::equal(matmul(a, b, at::kFloat), at::mm(a, b)));
  EXPECT_TRUE(at::equal(into(), at::mm(a, b)));
  // Rows without columns, as an expert without tokens may have.
  use_gemm_backend(GemmBackend::onednn);
  EXPECT_EQ(matmul(at::empty({0, 2048}), b, at::kFloat).size(0), 0);
}

TEST_F(Libraries, names_are_those_of_the_device) {
  EXPECT_EQ(gemm_backend_named("default", at::kDouble, at::kCPU), GemmBackend::standard);
  EXPECT_THROW(gemm_backend_named("cublas", at::kFloat, at::kCPU), base::ConfigError);
  EXPECT_THROW(gemm_backend_named("onednn", at::kDouble, at::kCPU), base::ConfigError);
  EXPECT_EQ(gemm_backend_named("cublaslt", at::kBFloat16, at::Device("cuda:0")), GemmBackend::cublaslt);
}

TEST_F(Libraries, multiply_any_number_of_rows) {
  for (const auto library : gemm_backends(at::kBFloat16, at::kCPU)) {
    use_gemm_backend(library);
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
      for (const int64_t rows : {0, 1, 63, 64, 65, 511, 512, 513, 1100}) {
        const auto a = at::randn({rows, 48}).to(dtype), b = at::randn({40, 48}).to(dtype).t();
        auto out = at::full({rows, 40}, 7.0).to(dtype);
        matmul_of_any_rows_into(out, a, b);
        const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble)), found = out.to(at::kDouble);
        EXPECT_TRUE(at::allclose(found, exact, dtype == at::kBFloat16 ? 1e-2 : 1e-5, 1e-5)) << rows << " " << name_of(library);
      }
  }
}

}  // namespace
}  // namespace ingot::kernels
