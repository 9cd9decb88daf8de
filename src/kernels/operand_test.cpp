// On a GPU, or on the emulated device, which has GEMMs of 8-bit operands: libtorch's for CPUs lie underneath.
#include "kernels/operand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/test_device.h"
#include "device/tracer.h"

namespace ingot::kernels {
namespace {

at::Tensor random(at::IntArrayRef sizes) { return (at::randn(sizes) * at::exp2(at::randn(sizes) * 4)).to(at::kBFloat16); }

at::Tensor numbers(const Operand& x) { return x.values.cpu().to(at::kDouble) * (x.has_codes() ? x.scale.cpu().item<double>() : 1.0); }

TEST(Operand, is_what_rounding_leaves_in_eight_bits_or_in_sixteen) {
  at::manual_seed(1);
  for (const auto kind : {OperandKind::activation, OperandKind::weight, OperandKind::gradient})
    for (const int64_t summed : {0, 1})
      for (const int64_t rows : {32, 80, 40}) {
        const auto x = random({rows, 48});
        const auto rounded = quantize(x, Quantization::fp8, kind, summed).to(at::kDouble);
        const auto expected = summed == 0 ? rounded.t() : rounded;
        const auto on_cpu = operand_of(x, Quantization::fp8, kind, summed);
        EXPECT_FALSE(on_cpu.has_codes());
        EXPECT_TRUE(numbers(on_cpu).equal(expected));
        const auto on_gpu = operand_of(x.to(device::gpu_of_tests()), Quantization::fp8, kind, summed);
        EXPECT_EQ(on_gpu.has_codes(), rows != 40 || (summed == 1 && kind != OperandKind::weight));
        EXPECT_TRUE(numbers(on_gpu).equal(expected)) << rows << " rows over " << summed;
        if (on_gpu.has_codes()) {
          EXPECT_EQ(on_gpu.values.scalar_type(), kind == OperandKind::gradient ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn);
        }
      }
}

TEST(Operand, of_zeros_and_of_what_is_not_finite) {
  const auto gpu = device::gpu_of_tests();
  auto x = at::zeros({16, 16}, at::kBFloat16);
  const auto codes = [&] { return operand_of(x.to(gpu), Quantization::fp8, OperandKind::activation, 1); };
  EXPECT_TRUE(numbers(codes()).equal(at::zeros({16, 16}, at::kDouble)));
  x[3][4] = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(numbers(codes())[3][4].isnan().item<bool>());
}

TEST(Operand, without_quantization_is_the_tensor) {
  const auto x = at::ones({2, 3});
  EXPECT_TRUE(operand_of(x, {}, OperandKind::weight, 1).values.is_same(x));
  EXPECT_EQ(operand_of(x, {}, OperandKind::weight, 0).values.data_ptr(), x.data_ptr());
}

// Of two in 8 bits, and of one that has too odd a size for them.
TEST(Operand, products_are_those_of_the_rounded_numbers) {
  at::manual_seed(2);
  const auto gpu = device::gpu_of_tests();
  for (const int64_t tokens : {32, 24}) {
    const auto grad = random({tokens, 48}).to(gpu), input = random({tokens, 64}).to(gpu), weight = random({48, 64}).to(gpu);
    const auto check = [](const Operand& a, const Operand& b) {
      const auto expected = numbers(a).mm(numbers(b).t());
      const auto error = [&](const at::Tensor& found, const at::Tensor& wanted) {
        return ((found.cpu().to(at::kDouble) - wanted).abs().max() / wanted.abs().max()).item<double>();
      };
      EXPECT_LT(error(matmul(a, b, at::kBFloat16), expected), 4e-3);
      auto sum = at::ones(expected.sizes(), a.values.options().dtype(at::kFloat));
      matmul_into(sum, a, b, /*overwrite=*/false);
      EXPECT_LT(error(sum, expected + 1), 1e-5);
      matmul_into(sum, a, b, /*overwrite=*/true);
      EXPECT_LT(error(sum, expected), 1e-5);
      auto rows = at::empty(expected.sizes(), a.values.options().dtype(at::kBFloat16));
      matmuls_of_any_rows_into({{rows, a, b}});
      EXPECT_LT(error(rows, expected), 4e-3);
    };
    const auto of = [](const at::Tensor& x, OperandKind kind, int64_t summed) { return operand_of(x, Quantization::fp8, kind, summed); };
    check(of(input, OperandKind::activation, 1), of(weight, OperandKind::weight, 1));
    check(of(grad, OperandKind::gradient, 1), of(weight, OperandKind::weight, 0));
    check(of(grad, OperandKind::gradient, 0), of(input, OperandKind::activation, 0));
  }
}

TEST(Operand, products_in_eight_bits_are_counted_as_one_gemm_and_wait_for_nobody) {
  const device::CountingDevice counting(device::Target::gpu);
  const auto options = at::TensorOptions().device(counting.device()).dtype(at::kBFloat16);
  device::Tracer tracer(counting.device());
  matmul(operand_of(at::empty({32, 64}, options), Quantization::fp8, OperandKind::activation, 1),
         operand_of(at::empty({48, 64}, options), Quantization::fp8, OperandKind::weight, 1), at::kBFloat16);
  const auto trace = tracer.finish();
  int gemms = 0;
  for (const auto& operation : trace.operations)
    if (trace.name_of(operation) == "scaled_gemm") {
      ++gemms;
      EXPECT_EQ(operation.flops, 2.0 * 32 * 64 * 48);
      EXPECT_EQ(operation.read_bytes, 64 * (32 + 48));
      EXPECT_EQ(operation.written_bytes, 2 * 32 * 48);
    }
  EXPECT_EQ(gemms, 1);
  EXPECT_TRUE(trace.host_accesses.empty());
}

}  // namespace
}  // namespace ingot::kernels
