// On the emulated device against libtorch's own grouped GEMM, which the CPU has too, and on a counting one.
#include "kernels/grouped_matmul.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/device.h"
#include "device/tracer.h"
#include "device/virtual_device.h"

namespace ingot::kernels {
namespace {

at::Tensor narrow_random(at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); }

double error_of(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.cpu().to(at::kFloat) - expected.to(at::kFloat)).norm() / expected.to(at::kFloat).norm()).item<double>();
}

// Four groups, of which one is empty.
const std::vector<int32_t> kEnds = {5, 5, 13, 21};

TEST(GroupedMatmul, equals_libtorchs_with_weights_that_lie_either_way) {
  at::manual_seed(1);
  const auto device = device::emulated_device(0);
  const auto rows = narrow_random({21, 16}), ends = at::tensor(kEnds, at::kInt);
  for (const bool is_transposed : {false, true}) {
    const auto weights = is_transposed ? narrow_random({4, 24, 16}).transpose(1, 2) : narrow_random({4, 16, 24});
    const auto expected = at::_grouped_mm(rows, weights, ends);
    ASSERT_TRUE(takes_grouped_matmul(rows.to(device), weights.to(device)));
    EXPECT_LT(error_of(grouped_matmul(rows.to(device), weights.to(device), ends.to(device)), expected), 1e-3);
  }
}

TEST(GroupedMatmul, gradients_equal_libtorchs_and_add_up_in_fp32) {
  at::manual_seed(2);
  const auto device = device::emulated_device(0);
  const auto a = narrow_random({21, 16}), b = narrow_random({21, 8}), ends = at::tensor(kEnds, at::kInt);
  const auto expected = at::_grouped_mm(a.t(), b, ends);
  auto out = at::full({4, 16, 8}, std::numeric_limits<double>::quiet_NaN(), at::TensorOptions().dtype(at::kFloat).device(device));
  grouped_gradient_into(out, a.to(device), b.to(device), ends.to(device), /*overwrite=*/true);
  EXPECT_LT(error_of(out, expected), 1e-3);
  EXPECT_EQ(out.cpu()[1].abs().max().item<double>(), 0);  // of the empty group
  grouped_gradient_into(out, a.to(device), b.to(device), ends.to(device), /*overwrite=*/false);
  EXPECT_LT(error_of(out, 2 * expected.to(at::kFloat)), 1e-3);
}

TEST(GroupedMatmul, are_for_gpus_and_sides_that_vectors_divide) {
  const auto on = [](const at::Device& device, at::ScalarType dtype, int64_t n) {
    const auto options = at::TensorOptions().device(device).dtype(dtype);
    return takes_grouped_matmul(at::zeros({8, 16}, options), at::zeros({2, 16, n}, options));
  };
  const auto gpu = device::emulated_device(0);
  EXPECT_TRUE(on(gpu, at::kBFloat16, 24));
  EXPECT_FALSE(on(gpu, at::kBFloat16, 20));
  EXPECT_FALSE(on(gpu, at::kFloat, 24));
  EXPECT_FALSE(on(at::kCPU, at::kBFloat16, 24));
}

TEST(GroupedMatmul, are_counted_as_one_kernel_and_wait_for_nobody) {
  const device::CountingDevice counting(device::Target::gpu);
  const auto options = at::TensorOptions().device(counting.device()).dtype(at::kBFloat16);
  const auto rows = at::empty({100, 16}, options), weights = at::empty({4, 16, 24}, options),
             ends = at::empty({4}, options.dtype(at::kInt));
  device::Tracer tracer(counting.device());
  grouped_matmul(rows, weights, ends);
  auto out = at::empty({4, 16, 24}, options.dtype(at::kFloat));
  grouped_gradient_into(out, rows, at::empty({100, 24}, options), ends, true);
  const auto trace = tracer.finish();
  std::map<std::string, double> flops;
  for (const auto& operation : trace.operations)
    if (operation.flops > 0) flops[std::string(trace.name_of(operation))] += operation.flops;
  EXPECT_THAT(flops, testing::UnorderedElementsAre(testing::Pair("grouped_gemm", 2.0 * 100 * 16 * 24),
                                                   testing::Pair("grouped_gemm.gradient", 2.0 * 100 * 16 * 24)));
  EXPECT_TRUE(trace.host_accesses.empty());
}

TEST(GroupedMatmul, read_the_weights_of_as_many_groups_as_there_can_be) {
  const device::CountingDevice counting(device::Target::gpu);
  const auto options = at::TensorOptions().device(counting.device()).dtype(at::kBFloat16);
  const auto bytes_of = [&](int64_t tokens) {
    device::Tracer tracer(counting.device());
    grouped_matmul(at::empty({tokens, 16}, options), at::empty({4, 16, 24}, options), at::empty({4}, options.dtype(at::kInt)));
    const auto trace = tracer.finish();
    double bytes = 0;
    for (const auto& operation : trace.operations)
      if (operation.flops > 0) bytes += static_cast<double>(operation.read_bytes + operation.written_bytes);
    return bytes;
  };
  for (const int64_t tokens : {1, 3, 4, 100})
    EXPECT_EQ(bytes_of(tokens), 2.0 * static_cast<double>(tokens * (16 + 24) + std::min<int64_t>(4, tokens) * 16 * 24)) << tokens;
}

}  // namespace
}  // namespace ingot::kernels
