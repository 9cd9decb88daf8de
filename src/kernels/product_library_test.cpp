#include "kernels/product_library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "kernels/matmul.h"

namespace ingot::kernels {
namespace {

struct Libraries : ::testing::Test {
  ~Libraries() override { use_product_library(ProductLibrary::usual); }
};

TEST_F(Libraries, all_multiply_and_add_up_to_rounding) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : 2e-2;
    for (const auto library : product_libraries(dtype, at::kCPU)) {
      use_product_library(library);
      ASSERT_EQ(product_library(), library);
      for (const int64_t m : {1, 17, 64})
        for (const bool transposed : {false, true}) {
          const auto a = (transposed ? at::randn({33, m}).t() : at::randn({m, 33})).to(dtype);
          const auto b = (transposed ? at::randn({48, 33}).t() : at::randn({33, 48})).to(dtype);
          const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble));
          const auto close = [&](const at::Tensor& result, const at::Tensor& wanted) {
            EXPECT_LT((result.to(at::kDouble) - wanted).abs().max().item<double>(), tolerance * 33) << name_of(library) << " " << m;
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

TEST_F(Libraries, a_choice_reaches_the_products) {
  const auto choices = product_libraries(at::kFloat, at::kCPU);
  if (std::find(choices.begin(), choices.end(), ProductLibrary::onednn) == choices.end()) GTEST_SKIP() << "this torch has no oneDNN";
  const auto a = at::randn({17, 2048}), b = at::randn({2048, 100});
  if (at::equal(multiply_by_onednn(a, b), at::mm(a, b))) GTEST_SKIP() << "the libraries round alike here, and nothing tells them apart";
  const auto into = [&] {
    auto out = at::empty({17, 100});
    matmul_into(out, a, b, true);
    return out;
  };
  use_product_library(ProductLibrary::onednn);
  EXPECT_TRUE(at::equal(matmul(a, b, at::kFloat), multiply_by_onednn(a, b)));
  EXPECT_TRUE(at::equal(into(), multiply_by_onednn(a, b)));
  use_product_library(ProductLibrary::usual);
  EXPECT_TRUE(at::equal(matmul(a, b, at::kFloat), at::mm(a, b)));
  EXPECT_TRUE(at::equal(into(), at::mm(a, b)));
  // Rows without columns, as an expert without tokens may have.
  use_product_library(ProductLibrary::onednn);
  EXPECT_EQ(matmul(at::empty({0, 2048}), b, at::kFloat).size(0), 0);
}

TEST_F(Libraries, names_are_those_of_the_device) {
  EXPECT_EQ(product_library_named("usual", at::kDouble, at::kCPU), ProductLibrary::usual);
  EXPECT_THROW(product_library_named("cublas", at::kFloat, at::kCPU), base::ConfigError);
  EXPECT_THROW(product_library_named("onednn", at::kDouble, at::kCPU), base::ConfigError);
  EXPECT_EQ(product_library_named("cublaslt", at::kBFloat16, at::Device("cuda:0")), ProductLibrary::cublaslt);
}

TEST_F(Libraries, get_few_numbers_of_rows_where_each_takes_a_kernel_of_its_own) {
  const auto narrow = at::zeros({1}, at::kBFloat16);
  for (int64_t rows = 0; rows < 3000; rows += 7) EXPECT_EQ(rows_of_known_kernel(rows, at::zeros({1})), rows);
  std::set<int64_t> numbers;
  for (int64_t rows = 1024; rows < 2048; ++rows) {
    const int64_t rounded = rows_of_known_kernel(rows, narrow);
    EXPECT_GE(rounded, rows);
    EXPECT_LT(rounded, rows * 9 / 8 + 1);
    numbers.insert(rounded);
  }
  if (cpu_has_bf16_products()) {
    EXPECT_LE(numbers.size(), 9u);
  }
  EXPECT_EQ(rows_of_known_kernel(0, narrow), 0);
  use_product_library(ProductLibrary::widened);
  EXPECT_EQ(rows_of_known_kernel(1025, narrow), 1025) << "fp32 products need none";
}

}  // namespace
}  // namespace ingot::kernels
