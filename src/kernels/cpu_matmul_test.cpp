#include "kernels/cpu_matmul.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/cpu/isa.h"
#include "kernels/gemm_backend.h"
#include "kernels/matmul.h"

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

class CpuMatmul : public ::testing::TestWithParam<Product> {};

at::Tensor matrix(at::ScalarType dtype, int64_t rows, int64_t columns, bool transposed) {
  return (transposed ? at::randn({columns, rows}).t() : at::randn({rows, columns})).to(dtype);
}

// How far a result may be from the exact one, where summands' sizes sum up to `sizes`.
at::Tensor room(at::ScalarType result, const at::Tensor& exact, const at::Tensor& sizes) {
  return sizes * 3e-6 + 1e-6 + (result == at::kBFloat16 ? exact.abs() * 0.005 : at::zeros({}, at::kDouble));
}

TEST_P(CpuMatmul, equals_the_product_in_fp64) {
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
            cpu_matmuls_into({{out, a, b, overwrite, {}}}, kernel);
            const auto wanted = overwrite ? exact : exact + 3;
            EXPECT_LE(((out.to(at::kDouble) - wanted).abs() / room(dtype, wanted.abs() + 3, sizes + 3)).max().item<double>(), 1)
                << name << (left ? ", a by columns" : "") << (right ? ", b by columns" : "") << ", " << dtype
                << (overwrite ? "" : ", added");
            wide.narrow(1, 2, n).fill_(3);
            EXPECT_TRUE(wide.eq(3).all().item<bool>()) << name << ": beside the view";
          }
      }
}

TEST_P(CpuMatmul, is_scaled_and_added_to_another_matrix) {
  const auto [m, n, k] = GetParam();
  for (const auto& [name, dtype, kernel] : every_kernel()) {
    const auto a = matrix(dtype, m, k, false), b = matrix(dtype, k, n, false), other = at::randn({m, n + 5}).to(dtype).narrow(1, 3, n);
    const auto out = at::empty({m, n}, dtype);
    cpu_matmuls_into({{out, a, b, /*overwrite=*/true, {.scale = 0.5, .other = other, .other_scale = -3}}}, kernel);
    const auto exact = at::mm(a.to(at::kDouble), b.to(at::kDouble)) * 0.5 - other.to(at::kDouble) * 3;
    const auto sizes = at::mm(a.abs().to(at::kDouble), b.abs().to(at::kDouble));
    EXPECT_LE(((out.to(at::kDouble) - exact).abs() / room(dtype, exact, sizes)).max().item<double>(), 1) << name;
  }
}

// Of which half is multiplied.
TEST_P(CpuMatmul, of_a_matrix_with_itself_is_symmetric_to_the_bit) {
  const auto [m, n, k] = GetParam();
  for (const auto& [name, dtype, kernel] : every_kernel()) {
    const auto p = matrix(dtype, n, k, false), half = at::randn({n, n}).to(dtype), other = (half + half.t()).contiguous();
    const auto out = at::full({n, n}, 1e9).to(dtype);
    cpu_matmuls_into({{out, p, p.t(), /*overwrite=*/true, {.scale = 2, .other = other, .other_scale = 0.25, .is_symmetric = true}}},
                     kernel);
    const auto wide = p.to(at::kDouble), exact = at::mm(wide, wide.t()) * 2 + other.to(at::kDouble) * 0.25;
    const auto sizes = at::mm(wide.abs(), wide.abs().t());
    EXPECT_LE(((out.to(at::kDouble) - exact).abs() / room(dtype, exact, sizes)).max().item<double>(), 1) << name;
    EXPECT_TRUE(at::equal(out, out.t())) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CpuMatmul,
                         ::testing::Values(Product{1, 1, 1}, Product{31, 33, 2}, Product{32, 64, 96}, Product{130, 40, 31},
                                           Product{7, 200, 600}, Product{150, 70, 256}, Product{1024, 40, 70}, Product{160, 96, 1056},
                                           Product{300, 1, 5}, Product{64, 2100, 513}),
                         [](const auto& info) { return fmt::format("{}x{}x{}", info.param.m, info.param.n, info.param.k); });

// Blocks are smaller for more threads; what is added to comes last in each.
TEST(CpuMatmulBits, are_those_of_one_thread_and_of_rows_by_themselves) {
  const int threads_before = at::get_num_threads();
  for (const auto& [name, dtype, kernel] : every_kernel())
    for (const bool overwrite : {true, false}) {
      const auto a = matrix(dtype, 200, 700, false), b = matrix(dtype, 700, 150, true), before = at::randn({200, 150});
      const auto product = [&, kernel = kernel](int64_t first, int64_t count, int threads) {
        at::set_num_threads(threads);
        const auto out = before.narrow(0, first, count).clone();
        cpu_matmuls_into({{out, a.narrow(0, first, count), b, overwrite, {}}}, kernel);
        return out;
      };
      const auto expected = product(0, 200, 1);
      EXPECT_TRUE(at::equal(product(0, 200, 3), expected)) << name << overwrite;
      for (const int64_t count : {1, 33, 64})
        EXPECT_TRUE(at::equal(product(37, count, 2), expected.narrow(0, 37, count)))
            << name << overwrite << ": a token's numbers depend on the others of " << count;
    }
  at::set_num_threads(threads_before);
}

TEST(CpuMatmulBits, of_a_product_of_nothing_are_what_is_added) {
  const auto other = at::randn({3, 4}), out = at::ones({3, 4});
  cpu_matmul_into(out, at::empty({3, 0}), at::empty({0, 4}), /*overwrite=*/false, {.scale = 1, .other = other, .other_scale = 2});
  EXPECT_TRUE(at::equal(out, other * 2 + 1));
  cpu_matmul_into(out, at::empty({3, 0}), at::empty({0, 4}), /*overwrite=*/true);
  EXPECT_TRUE(at::equal(out, at::zeros({3, 4})));
}

TEST(CpuMatmulBits, that_are_not_numbers_stay_in_their_row) {
  for (const auto& [name, dtype, kernel] : every_kernel()) {
    auto a = matrix(dtype, 40, 100, false);
    a[7][50] = std::numeric_limits<float>::quiet_NaN();
    a[9][50] = std::numeric_limits<float>::infinity();
    const auto out = at::empty({40, 33}, dtype);
    cpu_matmuls_into({{out, a, matrix(dtype, 100, 33, false), /*overwrite=*/true, {}}}, kernel);
    const auto finite = out.isfinite().all(-1);
    for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(finite[i].item<bool>(), i != 7 && i != 9) << name << ", " << i;
    EXPECT_TRUE(out[7].isnan().all().item<bool>()) << name;
  }
}

TEST(CpuMatmulBits, are_taken_by_the_choice_of_the_backend) {
  const auto a = at::randn({8, 8});
  for (const auto* name : {"default", "ingot", "blas"}) {
    if (std::string(name) == "ingot" && !has_cpu_matmul(at::kFloat)) continue;
    const auto backend = gemm_backend_named(name, at::kFloat, at::kCPU);  // also where it is the same as the default
    use_gemm_backend(backend);
    const bool is_taken = backend == GemmBackend::ingot || (backend == GemmBackend::standard && prefers_cpu_matmul(at::kFloat));
    EXPECT_EQ(takes_cpu_matmul(a, a, at::kFloat), is_taken) << name;
    EXPECT_TRUE(at::allclose(matmul(a, a, at::kFloat).to(at::kDouble), at::mm(a.to(at::kDouble), a.to(at::kDouble)), 1e-5, 1e-5)) << name;
  }
  use_gemm_backend(GemmBackend::standard);
  EXPECT_FALSE(takes_cpu_matmul(a.to(at::kDouble), a.to(at::kDouble), at::kDouble));
}

}  // namespace
}  // namespace ingot::kernels
