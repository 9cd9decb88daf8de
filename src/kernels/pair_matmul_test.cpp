#include "kernels/pair_matmul.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "kernels/cpu/isa.h"

namespace ingot::kernels {
namespace {

std::vector<std::pair<const char*, const cpu::PairGemmKernel*>> every_unit() {
  std::vector<std::pair<const char*, const cpu::PairGemmKernel*>> all;
#ifdef INGOT_X86_ISAS
  for (const auto unit : cpu::supported_pair_units()) {
    if (unit == cpu::PairUnit::avx512_bf16) all.emplace_back(cpu::name(unit), &cpu::avx512_bf16::pair_gemm);
    if (unit == cpu::PairUnit::amx) all.emplace_back(cpu::name(unit), &cpu::amx::pair_gemm);
  }
#endif
  return all;
}

struct Product {
  int64_t m, n, k;
};

struct PairMatmulBits : ::testing::Test {
  void SetUp() override {
    if (every_unit().empty()) GTEST_SKIP() << "this CPU has no unit for pairs of bf16";
  }
};

class PairMatmul : public ::testing::TestWithParam<Product> {
 protected:
  void SetUp() override {
    if (every_unit().empty()) GTEST_SKIP() << "this CPU has no unit for pairs of bf16";
  }
};

at::Tensor matrix(int64_t rows, int64_t columns, bool transposed) {
  return (transposed ? at::randn({columns, rows}).t() : at::randn({rows, columns})).to(at::kBFloat16);
}

TEST_P(PairMatmul, equals_the_product_in_fp64) {
  const auto [m, n, k] = GetParam();
  for (const auto& [unit, kernel] : every_unit())
    for (const bool left : {false, true})
      for (const bool right : {false, true}) {
        const auto a = matrix(m, k, left), b = matrix(k, n, right);
        const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble)), sizes = at::mm(a.abs().to(at::kDouble), b.abs().to(at::kDouble));
        for (const auto dtype : {at::kFloat, at::kBFloat16})
          for (const bool overwrite : {false, true}) {
            auto wide = at::full({m, n + 7}, 3.0).to(dtype);
            const auto out = wide.narrow(1, 2, n);
            pair_matmul_into(out, a, b, overwrite, {}, *kernel);
            const auto wanted = overwrite ? exact : exact + 3;
            const auto room = sizes * 1e-6 + 1e-6 + (dtype == at::kBFloat16 ? (wanted.abs() + 3) * 0.005 : at::zeros({}, at::kDouble));
            EXPECT_LE(((out.to(at::kDouble) - wanted).abs() / room).max().item<double>(), 1)
                << unit << (left ? ", a by columns" : "") << (right ? ", b by columns" : "") << ", " << dtype
                << (overwrite ? "" : ", added");
            wide.narrow(1, 2, n).fill_(3);
            EXPECT_TRUE(wide.eq(3).all().item<bool>()) << unit << ": beside the view";
          }
      }
}

TEST_P(PairMatmul, is_scaled_and_added_to_another_matrix) {
  const auto [m, n, k] = GetParam();
  for (const auto& [unit, kernel] : every_unit()) {
    const auto a = matrix(m, k, false), b = matrix(k, n, false), other = at::randn({m, n + 5}).to(at::kBFloat16).narrow(1, 3, n);
    const auto out = at::empty({m, n}, at::kBFloat16);
    pair_matmul_into(out, a, b, /*overwrite=*/true, {.scale = 0.5, .other = other, .other_scale = -3}, *kernel);
    const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble)) * 0.5 - other.to(at::kDouble) * 3;
    const auto sizes = at::mm(a.abs().to(at::kDouble), b.abs().to(at::kDouble));
    EXPECT_LE(((out.to(at::kDouble) - exact).abs() / (exact.abs() * 0.005 + sizes * 1e-6 + 1e-6)).max().item<double>(), 1) << unit;
  }
}

// Of which half is multiplied.
TEST_P(PairMatmul, of_a_matrix_with_itself_is_symmetric_to_the_bit) {
  const auto [m, n, k] = GetParam();
  for (const auto& [unit, kernel] : every_unit()) {
    const auto p = matrix(n, k, false), half = at::randn({n, n}).to(at::kBFloat16), other = (half + half.t()).contiguous();
    const auto out = at::full({n, n}, 1e9).to(at::kBFloat16);
    pair_matmul_into(out, p, p.t(), /*overwrite=*/true, {.scale = 2, .other = other, .other_scale = 0.25, .is_symmetric = true}, *kernel);
    const auto wide = p.to(at::kDouble), exact = at::mm(wide, wide.t()) * 2 + other.to(at::kDouble) * 0.25;
    const auto sizes = at::mm(wide.abs(), wide.abs().t());
    EXPECT_LE(((out.to(at::kDouble) - exact).abs() / (exact.abs() * 0.005 + sizes * 1e-6 + 1e-6)).max().item<double>(), 1) << unit;
    EXPECT_TRUE(at::equal(out, out.t())) << unit;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PairMatmul,
                         ::testing::Values(Product{1, 1, 1}, Product{31, 33, 2}, Product{32, 64, 96}, Product{130, 40, 31},
                                           Product{7, 200, 600}, Product{160, 96, 1056}, Product{300, 1, 5}, Product{64, 2100, 513}),
                         [](const auto& info) { return fmt::format("{}x{}x{}", info.param.m, info.param.n, info.param.k); });

TEST_F(PairMatmulBits, are_those_of_one_thread_and_of_rows_by_themselves) {
  const int threads_before = at::get_num_threads();
  for (const auto& [unit, kernel] : every_unit()) {
    const auto a = matrix(200, 700, false), b = matrix(700, 150, true);
    const auto product = [&](const at::Tensor& rows, int threads) {
      at::set_num_threads(threads);
      const auto out = at::empty({rows.size(0), 150});
      pair_matmul_into(out, rows, b, /*overwrite=*/true, {}, *kernel);
      return out;
    };
    const auto expected = product(a, 1);
    EXPECT_TRUE(at::equal(product(a, 3), expected)) << unit;
    EXPECT_TRUE(at::equal(product(a.narrow(0, 37, 64), 2), expected.narrow(0, 37, 64)))
        << unit << ": a token's numbers depend on the others";
  }
  at::set_num_threads(threads_before);
}

TEST_F(PairMatmulBits, that_are_not_numbers_stay_in_their_row) {
  for (const auto& [unit, kernel] : every_unit()) {
    auto a = matrix(40, 100, false);
    a[7][50] = std::numeric_limits<float>::quiet_NaN();
    a[9][50] = std::numeric_limits<float>::infinity();
    const auto out = at::empty({40, 33}).to(at::kBFloat16);
    pair_matmul_into(out, a, matrix(100, 33, false), /*overwrite=*/true, {}, *kernel);
    const auto finite = out.isfinite().all(-1);
    for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(finite[i].item<bool>(), i != 7 && i != 9) << unit << ", " << i;
    EXPECT_TRUE(out[7].isnan().all().item<bool>()) << unit;
  }
}

}  // namespace
}  // namespace ingot::kernels
