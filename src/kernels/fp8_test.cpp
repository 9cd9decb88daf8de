// Against a search over all 256 codes of a format, and against libtorch's own FP8 GEMM.
#include "kernels/fp8.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device/test_device.h"

namespace ingot::kernels {
namespace {

using testing::Values;

// The numbers of a format by code; NaN and infinities left out.
std::vector<std::pair<int, double>> numbers_of(at::ScalarType format) {
  const auto codes = at::arange(256, at::kInt).to(at::kByte).view(format).to(at::kDouble);
  std::vector<std::pair<int, double>> numbers;
  for (int code = 0; code < 256; ++code)
    if (const double number = codes[code].item<double>(); std::isfinite(number)) numbers.emplace_back(code, number);
  return numbers;
}

double nearest(double x, const std::vector<std::pair<int, double>>& numbers) {
  double best = 0, least = std::numeric_limits<double>::infinity();
  for (const auto& [code, number] : numbers) {
    const double distance = std::abs(x - number);
    if (distance < least || (distance == least && code % 2 == 0)) best = number, least = distance;
  }
  return best;
}

at::Tensor searched(const at::Tensor& x, int64_t tile_rows, int64_t tile_columns, at::ScalarType format) {
  const auto numbers = numbers_of(format);
  double largest = 0;
  for (const auto& [code, number] : numbers) largest = std::max(largest, number);
  auto out = x.to(at::kDouble).contiguous();
  for (int64_t row = 0; row < x.size(0); row += tile_rows)
    for (int64_t column = 0; column < x.size(1); column += tile_columns) {
      auto tile = out.narrow(0, row, std::min(tile_rows, x.size(0) - row)).narrow(1, column, std::min(tile_columns, x.size(1) - column));
      const double most = tile.abs().max().item<double>();
      double scale = std::exp2(-100);
      while (scale < std::exp2(100) && most > largest * scale) scale *= 2;
      for (int64_t i = 0; i < tile.size(0); ++i)
        for (int64_t j = 0; j < tile.size(1); ++j) {
          auto one = tile[i][j];
          one.fill_(nearest(one.item<double>() / scale, numbers) * scale);
        }
    }
  return out;
}

struct Case {
  Fp8Scaling scaling;
  Fp8Operand operand;
  int64_t summed;
  int64_t tile_rows, tile_columns;  // 0: all
  at::ScalarType format = at::kFloat8_e4m3fn;
};

std::string name_of(const Case& c) {
  constexpr const char *scalings[] = {"tensor", "block", "mx"}, *operands[] = {"activation", "weight", "gradient"};
  return fmt::format("{}_{}_over_{}", scalings[static_cast<int>(c.scaling)], operands[static_cast<int>(c.operand)], c.summed);
}

class RoundToFp8 : public testing::TestWithParam<Case> {};

TEST_P(RoundToFp8, finds_the_nearest_of_all_codes) {
  const auto c = GetParam();
  at::manual_seed(1);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{3, 40}, {33, 130}, {130, 5}})
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      // Over many powers of two, with ties, both zeros and a whole tile of zeros.
      auto x = at::randn({rows, columns}) * at::exp2(at::randn({rows, columns}) * 6);
      x[0].copy_(at::arange(columns) * 0.125);
      x.select(1, 0).zero_();
      x[1][1] = -0.0;
      x = x.to(dtype);
      const auto got = round_to_fp8(x.to(device::test_device()), c.scaling, c.operand, c.summed).cpu();
      const auto want = searched(x, c.tile_rows ? c.tile_rows : rows, c.tile_columns ? c.tile_columns : columns, c.format);
      EXPECT_EQ(got.scalar_type(), dtype);
      EXPECT_TRUE(got.to(at::kDouble).equal(want)) << rows << " x " << columns << ", " << (got.to(at::kDouble) - want).abs().max();
    }
}

INSTANTIATE_TEST_SUITE_P(Fp8, RoundToFp8,
                         Values(Case{Fp8Scaling::tensor, Fp8Operand::activation, 1, 0, 0},
                                Case{Fp8Scaling::tensor, Fp8Operand::gradient, 1, 0, 0, at::kFloat8_e5m2},
                                Case{Fp8Scaling::tensor, Fp8Operand::gradient, 0, 0, 0, at::kFloat8_e5m2},
                                Case{Fp8Scaling::block, Fp8Operand::activation, 1, 1, 128},
                                Case{Fp8Scaling::block, Fp8Operand::gradient, 0, 128, 1},
                                Case{Fp8Scaling::block, Fp8Operand::weight, 0, 128, 128},
                                Case{Fp8Scaling::mx, Fp8Operand::gradient, 1, 1, 32}, Case{Fp8Scaling::mx, Fp8Operand::weight, 0, 32, 1}),
                         [](const auto& info) { return name_of(info.param); });

TEST(Fp8, what_is_not_finite_leaves_nans) {
  for (const double broken : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    for (const auto scaling : {Fp8Scaling::tensor, Fp8Scaling::block, Fp8Scaling::mx}) {
      auto x = at::ones({40, 64});
      x[3][7] = broken;
      const auto out = round_to_fp8(x, scaling, Fp8Operand::activation, 1);
      EXPECT_TRUE(out[3][7].isnan().item<bool>());
      EXPECT_FALSE(out[39].isnan().any().item<bool>() && scaling != Fp8Scaling::tensor);
    }
}

// Products of rounded operands in bf16, summed in fp32, are an FP8 GEMM's.
TEST(Fp8, gemms_of_rounded_operands_are_those_of_fp8) {
  at::manual_seed(2);
  const auto a = at::randn({32, 64}).to(at::kBFloat16), b = at::randn({48, 64}).to(at::kBFloat16);
  const auto rounded_a = round_to_fp8(a, Fp8Scaling::tensor, Fp8Operand::activation, 1),
             rounded_b = round_to_fp8(b, Fp8Scaling::tensor, Fp8Operand::weight, 1);
  const auto scale_of = [](const at::Tensor& x) {
    return std::exp2(std::ceil(std::log2(x.to(at::kFloat).abs().max().item<float>() / 448)));
  };
  const auto codes = [&](const at::Tensor& x) { return (x.to(at::kFloat) / scale_of(x)).to(at::kFloat8_e4m3fn); };
  const auto scale = [&](const at::Tensor& x) { return at::full({}, scale_of(x), at::kFloat); };
  const auto fp8 = at::_scaled_mm(codes(rounded_a), codes(rounded_b).t(), scale(a), scale(b), {}, {}, at::kFloat);
  const auto wide = rounded_a.to(at::kDouble).mm(rounded_b.to(at::kDouble).t());
  EXPECT_LT((fp8.to(at::kDouble) - wide).abs().max().item<double>(), 1e-4);
  EXPECT_GT((a.to(at::kDouble).mm(b.to(at::kDouble).t()) - wide).abs().max().item<double>(), 1e-2);
}

}  // namespace
}  // namespace ingot::kernels
