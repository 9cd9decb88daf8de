// Experts' GEMMs in 8 bits on a GPU or the emulated device, against products in fp64 of operands that are rounded here.
#include "kernels/grouped_operand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "device/test_device.h"
#include "device/tracer.h"

namespace ingot::kernels {
namespace {

constexpr auto kFp8 = Quantization::fp8;

at::Tensor random(at::IntArrayRef sizes) { return (at::randn(sizes) * at::exp2(at::randn(sizes) * 2)).to(at::kBFloat16); }

// In e4m3 with the smallest power of two at which nothing overflows.
at::Tensor rounded(const at::Tensor& x_in) {
  const auto x = x_in.to(at::kDouble);
  const double largest = x.numel() > 0 ? x.abs().max().item<double>() : 0,
               scale = largest > 0 ? std::exp2(std::ceil(std::log2(largest / 448))) : 1;
  return (x / scale).to(at::kFloat8_e4m3fn).to(at::kDouble) * scale;
}

double error_of(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.cpu().to(at::kDouble) - expected).norm() / (expected.norm() + 1e-30)).item<double>();
}

// Slots that are sorted already: `rows` of each group, then `skipped` ones.
SortedSlots slots_of(const std::vector<int64_t>& rows, int64_t skipped, at::Device device) {
  std::vector<int64_t> choice;
  for (size_t g = 0; g < rows.size(); ++g) choice.insert(choice.end(), static_cast<size_t>(rows[g]), static_cast<int64_t>(g));
  choice.insert(choice.end(), static_cast<size_t>(skipped), static_cast<int64_t>(rows.size()));
  return sort_slots(at::tensor(choice, at::kLong).to(device), static_cast<int64_t>(rows.size()));
}

// In bf16: 2^-9 of the largest.
constexpr double kResult = 3e-3;

TEST(GroupedGemms, in_eight_bits_are_those_of_operands_rounded_group_by_group) {
  at::manual_seed(1);
  const auto gpu = device::gpu_of_tests();
  constexpr int64_t kOut = 32, kIn = 48;
  for (const auto& [counts, skipped] : std::vector<std::pair<std::vector<int64_t>, int64_t>>{{{5, 0, 13, 3}, 0},
                                                                                             {{5, 0, 13, 3}, 4},
                                                                                             {{0, 0, 41, 0}, 0},
                                                                                             {{37, 0, 0, 0}, 0},
                                                                                             {{16, 1, 32, 15}, 1},
                                                                                             {{2, 3, 4, 0}, 7},
                                                                                             {{0, 0, 0, 0}, 9}}) {
    SCOPED_TRACE(testing::Message() << testing::PrintToString(counts) << " and " << skipped);
    const int64_t groups = static_cast<int64_t>(counts.size()), routed = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    auto x = random({routed + skipped, kIn}), grad = random({routed + skipped, kOut});
    // Groups have scales of their own, and what is skipped is in none.
    const auto stretch = at::exp2(at::arange(groups + 1) * 3).to(at::kBFloat16);
    int64_t row = 0;
    for (int64_t g = 0; g <= groups; ++g) {
      const int64_t n = g < groups ? counts[static_cast<size_t>(g)] : skipped;
      x.narrow(0, row, n).mul_(stretch[g]), grad.narrow(0, row, n).mul_(stretch[groups - g]);
      row += n;
    }
    if (skipped > 0) x.narrow(0, routed, skipped).mul_(100), grad.narrow(0, routed, skipped).mul_(100);
    const auto weights = random({groups, kOut, kIn});
    weights[1].mul_(64);
    ASSERT_TRUE(GroupedGemms::take(weights.to(gpu), x.size(0), kFp8));
    const GroupedGemms gemms(slots_of(counts, skipped, gpu), kFp8);
    const auto out = gemms.forward(x.to(gpu), weights.to(gpu)).cpu(), grad_x = gemms.grad_input(grad.to(gpu), weights.to(gpu)).cpu();
    EXPECT_TRUE(out.isfinite().all().item<bool>() && grad_x.isfinite().all().item<bool>());
    const auto sums = at::full({groups, kOut, kIn}, std::nan(""), at::TensorOptions().dtype(at::kFloat).device(gpu));
    gemms.grad_weight_into(sums, grad.to(gpu), x.to(gpu), /*overwrite=*/true);
    const auto once = sums.cpu();
    gemms.grad_weight_into(sums, grad.to(gpu), x.to(gpu), /*overwrite=*/false);
    EXPECT_TRUE(at::equal(sums.cpu(), 2 * once));
    row = 0;
    for (int64_t g = 0; g < groups; row += counts[static_cast<size_t>(g++)]) {
      const int64_t n = counts[static_cast<size_t>(g)];
      const auto of = [&](const at::Tensor& rows) { return rows.narrow(0, row, n); };
      const auto x_g = rounded(of(x)), grad_g = rounded(of(grad)), weight = rounded(weights[g]);
      if (n > 0) {
        EXPECT_LT(error_of(of(out), x_g.mm(weight.t())), kResult) << g;
        EXPECT_LT(error_of(of(grad_x), grad_g.mm(weight)), kResult) << g;
        EXPECT_LT(error_of(once[g], grad_g.t().mm(x_g)), kResult) << g;
      } else {
        EXPECT_EQ(once[g].abs().max().item<double>(), 0) << g;
      }
    }
    if (skipped > 0) {
      EXPECT_LT(error_of(out.narrow(0, routed, skipped), rounded(x.narrow(0, routed, skipped)).mm(rounded(weights[groups - 1]).t())),
                kResult);
    }
  }
}

// What they differ in from bf16's is rounding to four bits, not to one scale for all.
TEST(GroupedGemms, in_eight_bits_stay_near_those_of_bf16) {
  at::manual_seed(2);
  const auto gpu = device::gpu_of_tests();
  const auto slots = slots_of({40, 3, 21}, 0, gpu);
  const auto x = at::randn({64, 64}).to(at::kBFloat16).to(gpu), weights = at::randn({3, 32, 64}).to(at::kBFloat16).to(gpu);
  const double error =
      error_of(GroupedGemms(slots, kFp8).forward(x, weights), GroupedGemms(slots, {}).forward(x, weights).cpu().to(at::kDouble));
  EXPECT_GT(error, 0.01);
  EXPECT_LT(error, 0.06);
}

TEST(GroupedGemms, take_what_libtorchs_kernels_take) {
  const auto gpu = device::gpu_of_tests();
  const auto takes = [&](at::Device device, at::ScalarType dtype, int64_t groups, int64_t n, int64_t rows,
                         std::optional<Quantization> quantization) {
    return GroupedGemms::take(at::empty({groups, n, 32}, at::TensorOptions().device(device).dtype(dtype)), rows, quantization);
  };
  EXPECT_TRUE(takes(gpu, at::kBFloat16, 4, 48, 100, kFp8));
  EXPECT_TRUE(takes(gpu, at::kBFloat16, 4, 24, 100, {}));
  EXPECT_FALSE(takes(gpu, at::kBFloat16, 4, 24, 100, kFp8));  // no multiple of 16
  EXPECT_FALSE(takes(gpu, at::kFloat, 4, 48, 100, kFp8));
  EXPECT_FALSE(takes(at::kCPU, at::kBFloat16, 4, 48, 100, kFp8));
  for (const auto other : {Quantization::fp8_block, Quantization::mxfp8, Quantization::nvfp4})
    EXPECT_FALSE(takes(gpu, at::kBFloat16, 4, 48, 100, other));
  EXPECT_TRUE(takes(gpu, at::kBFloat16, 1023, 16, 100, kFp8));
  EXPECT_FALSE(takes(gpu, at::kBFloat16, 1024, 16, 100, kFp8));
  EXPECT_FALSE(takes(gpu, at::kBFloat16, 1024, 16, 100, {}));
  EXPECT_FALSE(takes(gpu, at::kBFloat16, 4, 48, int64_t{1} << 24, kFp8));         // rows that the sort counts
  EXPECT_FALSE(takes(gpu, at::kBFloat16, 4, 512, (int64_t{1} << 24) - 1, kFp8));  // 2^33 elements
}

TEST(GroupedGemms, in_eight_bits_are_counted_as_one_kernel_each_and_wait_for_nobody) {
  const device::CountingDevice counting(device::Target::gpu);
  const auto options = at::TensorOptions().device(counting.device()).dtype(at::kBFloat16);
  const auto choice = at::empty({100}, options.dtype(at::kLong));
  const auto x = at::empty({100, 48}, options), grad = at::empty({100, 32}, options), weights = at::empty({4, 32, 48}, options);
  auto sums = at::empty({4, 32, 48}, options.dtype(at::kFloat));
  ASSERT_TRUE(GroupedGemms::take(weights, 100, kFp8));
  device::Tracer tracer(counting.device());
  const GroupedGemms gemms(sort_slots(choice, 4), kFp8);
  gemms.forward(x, weights);
  gemms.grad_input(grad, weights);
  gemms.grad_weight_into(sums, grad, x, true);
  const auto trace = tracer.finish();
  std::map<std::string, double> flops;
  for (const auto& operation : trace.operations)
    if (operation.flops > 0) flops[std::string(trace.name_of(operation))] += operation.flops;
  EXPECT_THAT(flops, testing::UnorderedElementsAre(testing::Pair("scaled_grouped_gemm", 2 * 2.0 * 100 * 32 * 48),
                                                   testing::Pair("scaled_grouped_gemm.gradient", 2.0 * 100 * 32 * 48)));
  EXPECT_TRUE(trace.host_accesses.empty());
}

// libtorch's checks, by hand: the emulated device must refuse what a GPU would.
TEST(GroupedGemms, of_codes_that_lie_otherwise_are_refused) {
  const auto gpu = device::gpu_of_tests();
  const auto codes = [&](at::IntArrayRef sizes) { return at::zeros(sizes, at::kFloat8_e4m3fn).to(gpu); };
  const auto scales = [&](at::IntArrayRef sizes) { return at::ones(sizes).to(gpu); };
  const auto ends = at::tensor({5, 8}, at::kInt).to(gpu);
  const GroupedCodes rows{codes({8, 32}), scales({8})};
  EXPECT_NO_THROW(grouped_matmul(rows, {codes({2, 16, 32}).transpose(1, 2), scales({2, 16})}, ends));
  EXPECT_THROW(grouped_matmul(rows, {codes({2, 32, 16}), scales({2, 16})}, ends), base::Error);                  // columns apart
  EXPECT_THROW(grouped_matmul(rows, {codes({2, 24, 32}).transpose(1, 2), scales({2, 24})}, ends), base::Error);  // 24
  EXPECT_THROW(grouped_matmul(rows, {codes({2, 16, 32}).transpose(1, 2), scales({2, 32})}, ends), base::Error);  // scales
  EXPECT_THROW(grouped_matmul({rows.values.to(at::kFloat8_e5m2), rows.scales}, {codes({2, 16, 32}).transpose(1, 2), scales({2, 16})}, ends),
               base::Error);
}

}  // namespace
}  // namespace ingot::kernels
