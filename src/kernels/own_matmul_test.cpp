#include "kernels/own_matmul.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <set>

#include "kernels/cpu/isa.h"
#include "kernels/gemm_backend.h"

namespace ingot::kernels {
namespace {

struct Kernel {
  const char* name;
  at::ScalarType dtype;
  const cpu::GemmKernel* kernel;
};

// That this CPU can run.
std::vector<Kernel> every_kernel() {
  std::vector<Kernel> all = {{"portable", at::kFloat, &cpu::portable::float_gemm}};
#ifdef INGOT_X86_ISAS
  for (const auto isa : cpu::supported_isas()) {
    if (isa == cpu::Isa::avx2) all.push_back({cpu::name(isa), at::kFloat, &cpu::avx2::float_gemm});
    if (isa == cpu::Isa::avx512) all.push_back({cpu::name(isa), at::kFloat, &cpu::avx512::float_gemm});
  }
  for (const auto unit : cpu::supported_pair_units()) {
    if (unit == cpu::PairUnit::avx512_bf16) all.push_back({cpu::name(unit), at::kBFloat16, &cpu::avx512_bf16::pair_gemm});
    if (unit == cpu::PairUnit::amx) all.push_back({cpu::name(unit), at::kBFloat16, &cpu::amx::pair_gemm});
  }
#endif
  return all;
}

struct Product {
  int64_t m, n, k;
};

class OwnMatmul : public ::testing::TestWithParam<Product> {};

at::Tensor matrix(at::ScalarType dtype, int64_t rows, int64_t columns, bool transposed) {
  return (transposed ? at::randn({columns, rows}).t() : at::randn({rows, columns})).to(dtype);
}

// How far a result may be from the exact one, where summands' sizes sum up to `sizes`.
at::Tensor room(at::ScalarType result, const at::Tensor& exact, const at::Tensor& sizes) {
  return sizes * 3e-6 + 1e-6 + (result == at::kBFloat16 ? exact.abs() * 0.005 : at::zeros({}, at::kDouble));
}

TEST_P(OwnMatmul, equals_the_product_in_fp64) {
  const auto [m, n, k] = GetParam();
  for (const auto& [name, of, kernel] : every_kernel())
    for (const bool left : {false, true})
      for (const bool right : {false, true}) {
        const auto a = matrix(of, m, k, left), b = matrix(of, k, n, right);
        const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble)), sizes = at::mm(a.abs().to(at::kDouble), b.abs().to(at::kDouble));
        for (const auto dtype : std::set{at::kFloat, of})
          for (const bool overwrite : {false, true}) {
            auto wide = at::full({m, n + 7}, 3.0).to(dtype);
            const auto out = wide.narrow(1, 2, n);
            own_matmul_into(out, a, b, overwrite, {}, *kernel);
            const auto wanted = overwrite ? exact : exact + 3;
            EXPECT_LE(((out.to(at::kDouble) - wanted).abs() / room(dtype, wanted.abs() + 3, sizes + 3)).max().item<double>(), 1)
                << name << (left ? ", a by columns" : "") << (right ? ", b by columns" : "") << ", " << dtype
                << (overwrite ? "" : ", added");
            wide.narrow(1, 2, n).fill_(3);
            EXPECT_TRUE(wide.eq(3).all().item<bool>()) << name << ": beside the view";
          }
      }
}

TEST_P(OwnMatmul, is_scaled_and_added_to_another_matrix) {
  const auto [m, n, k] = GetParam();
  for (const auto& [name, dtype, kernel] : every_kernel()) {
    const auto a = matrix(dtype, m, k, false), b = matrix(dtype, k, n, false), other = at::randn({m, n + 5}).to(dtype).narrow(1, 3, n);
    const auto out = at::empty({m, n}, dtype);
    own_matmul_into(out, a, b, /*overwrite=*/true, {.scale = 0.5, .other = other, .other_scale = -3}, *kernel);
    const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble)) * 0.5 - other.to(at::kDouble) * 3;
    const auto sizes = at::mm(a.abs().to(at::kDouble), b.abs().to(at::kDouble));
    EXPECT_LE(((out.to(at::kDouble) - exact).abs() / room(dtype, exact, sizes)).max().item<double>(), 1) << name;
  }
}

// Of which half is multiplied.
TEST_P(OwnMatmul, of_a_matrix_with_itself_is_symmetric_to_the_bit) {
  const auto [m, n, k] = GetParam();
  for (const auto& [name, dtype, kernel] : every_kernel()) {
    const auto p = matrix(dtype, n, k, false), half = at::randn({n, n}).to(dtype), other = (half + half.t()).contiguous();
    const auto out = at::full({n, n}, 1e9).to(dtype);
    own_matmul_into(out, p, p.t(), /*overwrite=*/true, {.scale = 2, .other = other, .other_scale = 0.25, .is_symmetric = true}, *kernel);
    const auto wide = p.to(at::kDouble), exact = at::mm(wide, wide.t()) * 2 + other.to(at::kDouble) * 0.25;
    const auto sizes = at::mm(wide.abs(), wide.abs().t());
    EXPECT_LE(((out.to(at::kDouble) - exact).abs() / room(dtype, exact, sizes)).max().item<double>(), 1) << name;
    EXPECT_TRUE(at::equal(out, out.t())) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, OwnMatmul,
                         ::testing::Values(Product{1, 1, 1}, Product{31, 33, 2}, Product{32, 64, 96}, Product{130, 40, 31},
                                           Product{7, 200, 600}, Product{150, 70, 256}, Product{160, 96, 1056}, Product{300, 1, 5},
                                           Product{64, 2100, 513}),
                         [](const auto& info) { return fmt::format("{}x{}x{}", info.param.m, info.param.n, info.param.k); });

TEST(OwnMatmulBits, are_those_of_one_thread_and_of_rows_by_themselves) {
  const int threads_before = at::get_num_threads();
  for (const auto& [name, dtype, kernel] : every_kernel()) {
    const auto a = matrix(dtype, 200, 700, false), b = matrix(dtype, 700, 150, true);
    const auto product = [&, kernel = kernel](const at::Tensor& rows, int threads) {
      at::set_num_threads(threads);
      const auto out = at::empty({rows.size(0), 150});
      own_matmul_into(out, rows, b, /*overwrite=*/true, {}, *kernel);
      return out;
    };
    const auto expected = product(a, 1);
    EXPECT_TRUE(at::equal(product(a, 3), expected)) << name;
    EXPECT_TRUE(at::equal(product(a.narrow(0, 37, 64), 2), expected.narrow(0, 37, 64)))
        << name << ": a token's numbers depend on the others";
  }
  at::set_num_threads(threads_before);
}

TEST(OwnMatmulBits, that_are_not_numbers_stay_in_their_row) {
  for (const auto& [name, dtype, kernel] : every_kernel()) {
    auto a = matrix(dtype, 40, 100, false);
    a[7][50] = std::numeric_limits<float>::quiet_NaN();
    a[9][50] = std::numeric_limits<float>::infinity();
    const auto out = at::empty({40, 33}, dtype);
    own_matmul_into(out, a, matrix(dtype, 100, 33, false), /*overwrite=*/true, {}, *kernel);
    const auto finite = out.isfinite().all(-1);
    for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(finite[i].item<bool>(), i != 7 && i != 9) << name << ", " << i;
    EXPECT_TRUE(out[7].isnan().all().item<bool>()) << name;
  }
}

// On a CPU the default is whatever was measured to be the fastest; a choice is kept to.
TEST(OwnMatmulBits, are_taken_by_the_choice_of_the_backend) {
  const auto a = at::randn({8, 8});
  for (const auto backend : gemm_backends(at::kFloat, at::kCPU)) {
    use_gemm_backend(backend);
    const bool is_own = backend == GemmBackend::own || (backend == GemmBackend::standard && prefers_own_matmul(at::kFloat));
    EXPECT_EQ(takes_own_matmul(a, a, at::kFloat), is_own) << name_of(backend);
  }
  use_gemm_backend(GemmBackend::standard);
  EXPECT_FALSE(takes_own_matmul(a.to(at::kDouble), a.to(at::kDouble), at::kDouble));
}

}  // namespace
}  // namespace ingot::kernels
