// Against a search over all 256 codes of a format, and against libtorch's own FP8 GEMM.
#include "kernels/quantization.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
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
  Quantization quantization;
  OperandKind operand;
  int64_t summed;
  int64_t tile_rows, tile_columns;  // 0: all
  at::ScalarType format = at::kFloat8_e4m3fn;
};

std::string name_of(const Case& c) {
  constexpr const char *quantizations[] = {"fp8", "fp8_block", "mxfp8"},
                       *operands[] = {"activation", "weight", "gradient", "expert_gradient"};
  return fmt::format("{}_{}_over_{}", quantizations[static_cast<int>(c.quantization)], operands[static_cast<int>(c.operand)], c.summed);
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
      const auto got = quantize(x.to(device::test_device()), c.quantization, c.operand, c.summed).cpu();
      const auto want = searched(x, c.tile_rows ? c.tile_rows : rows, c.tile_columns ? c.tile_columns : columns, c.format);
      EXPECT_EQ(got.scalar_type(), dtype);
      EXPECT_TRUE(got.to(at::kDouble).equal(want)) << rows << " x " << columns << ", " << (got.to(at::kDouble) - want).abs().max();
    }
}

INSTANTIATE_TEST_SUITE_P(Fp8, RoundToFp8,
                         Values(Case{Quantization::fp8, OperandKind::activation, 1, 0, 0},
                                Case{Quantization::fp8, OperandKind::gradient, 1, 0, 0, at::kFloat8_e5m2},
                                Case{Quantization::fp8, OperandKind::gradient, 0, 0, 0, at::kFloat8_e5m2},
                                Case{Quantization::fp8, OperandKind::expert_gradient, 1, 0, 0},
                                Case{Quantization::fp8_block, OperandKind::activation, 1, 1, 128},
                                Case{Quantization::fp8_block, OperandKind::gradient, 0, 128, 1},
                                Case{Quantization::fp8_block, OperandKind::weight, 0, 128, 128},
                                Case{Quantization::mxfp8, OperandKind::gradient, 1, 1, 32},
                                Case{Quantization::mxfp8, OperandKind::weight, 0, 32, 1}),
                         [](const auto& info) { return name_of(info.param); });

TEST(Fp8, what_is_not_finite_leaves_nans) {
  for (const double broken : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    for (const auto quantization : {Quantization::fp8, Quantization::fp8_block, Quantization::mxfp8}) {
      auto x = at::ones({40, 64});
      x[3][7] = broken;
      const auto out = quantize(x, quantization, OperandKind::activation, 1);
      EXPECT_TRUE(out[3][7].isnan().item<bool>());
      EXPECT_FALSE(out[39].isnan().any().item<bool>() && quantization != Quantization::fp8);
    }
}

// Products of rounded operands in bf16, summed in fp32, are an FP8 GEMM's.
TEST(Fp8, gemms_of_rounded_operands_are_those_of_fp8) {
  at::manual_seed(2);
  const auto a = at::randn({32, 64}).to(at::kBFloat16), b = at::randn({48, 64}).to(at::kBFloat16);
  const auto rounded_a = quantize(a, Quantization::fp8, OperandKind::activation, 1),
             rounded_b = quantize(b, Quantization::fp8, OperandKind::weight, 1);
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

constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};  // by code

// The scales of 16 x 16, 16 x 1 or 1 x 16 elements, spread over them.
at::Tensor scales_of_nvfp4(const at::Tensor& x, int64_t tile_rows, int64_t tile_columns) {
  const auto e4m3 = numbers_of(at::kFloat8_e4m3fn);
  double outer = std::exp2(-100);
  while (x.abs().max().item<double>() > 6 * 448 * outer) outer *= 2;
  auto scales = at::empty_like(x);
  for (int64_t row = 0; row < x.size(0); row += tile_rows)
    for (int64_t column = 0; column < x.size(1); column += tile_columns) {
      const auto tile = [&](const at::Tensor& of) {
        return of.narrow(0, row, std::min(tile_rows, x.size(0) - row)).narrow(1, column, std::min(tile_columns, x.size(1) - column));
      };
      tile(scales).fill_(nearest(tile(x).abs().max().item<float>() / 6.0f / outer, e4m3) * outer);
    }
  return scales;
}

// By the definition: H[i][j] = (-1)^(bits that i and j share) / 4, and a sign for each column.
at::Tensor rotated_by_definition(const at::Tensor& x) {
  auto out = x.to(at::kDouble).clone();
  for (int64_t from = 0; from + 16 <= x.size(0); from += 16)
    for (int64_t i = 0; i < 16; ++i) {
      auto row = at::zeros({x.size(1)}, at::kDouble);
      for (int64_t j = 0; j < 16; ++j)
        row += x[from + j].to(at::kDouble) * (std::popcount(static_cast<uint64_t>(i & j)) % 2 ? -0.25 : 0.25) * (0x6b1d >> j & 1 ? -1 : 1);
      out[from + i].copy_(row);
    }
  return out;
}

at::Tensor over_many_powers(int64_t rows, int64_t columns) { return at::randn({rows, columns}) * at::exp2(at::randn({rows, columns}) * 3); }

TEST(Nvfp4, finds_the_nearest_of_all_codes) {
  at::manual_seed(3);
  struct {
    OperandKind kind;
    int64_t summed, tile_rows, tile_columns;
  } constexpr cases[] = {{OperandKind::activation, 1, 1, 16}, {OperandKind::weight, 1, 16, 16}, {OperandKind::weight, 0, 16, 16}};
  for (const auto& c : cases)
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{3, 40}, {33, 18}, {17, 130}})
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        auto x = over_many_powers(rows, columns);
        x[0].copy_(at::arange(columns) * 0.125);
        x.select(1, 0).zero_();
        x = x.to(dtype);
        const auto got = quantize(x.to(device::test_device()), Quantization::nvfp4, c.kind, c.summed).cpu();
        EXPECT_EQ(got.scalar_type(), dtype);
        const auto wide = x.to(at::kDouble), scales = scales_of_nvfp4(wide, c.tile_rows, c.tile_columns);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < columns; ++j) {
            const double scale = scales[i][j].item<double>(), one = wide[i][j].item<double>();
            double best = 0, least = std::numeric_limits<double>::infinity();
            const double quotient = scale == 0 ? 0 : std::abs(static_cast<float>(one) / static_cast<float>(scale));
            for (int code = 0; code < 8; ++code)
              if (const double distance = std::abs(kE2m1[code] - quotient); distance < least || (distance == least && code % 2 == 0))
                best = kE2m1[code], least = distance;
            EXPECT_EQ(got[i][j].item<double>(), std::copysign(best * scale, one)) << i << " " << j << " of " << rows << " x " << columns;
          }
      }
}

TEST(Nvfp4, rounds_gradients_to_a_neighbour_by_chance_and_without_bias) {
  at::manual_seed(4);
  const auto x = at::randn({64, 512}), scales = scales_of_nvfp4(x.to(at::kDouble), 1, 16);
  const auto got = quantize(x.to(device::test_device()), Quantization::nvfp4, OperandKind::gradient, 1).cpu();
  EXPECT_TRUE(got.equal(quantize(x.to(device::test_device()), Quantization::nvfp4, OperandKind::gradient, 1).cpu()));
  double error = 0, variance = 0;
  int64_t up = 0;
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j < x.size(1); ++j) {
      const double scale = scales[i][j].item<double>(), exact = std::min(6.0, std::abs(x[i][j].item<double>()) / scale);
      const double rounded = std::abs(got[i][j].item<double>()) / scale;
      const auto* const above = std::upper_bound(std::begin(kE2m1), std::end(kE2m1), exact);
      const double low = *(above - 1), high = above == std::end(kE2m1) ? 6 : *above;
      ASSERT_TRUE(rounded == low || rounded == high) << exact << " became " << rounded;
      ASSERT_GE(got[i][j].item<double>() * x[i][j].item<double>(), 0);
      error += rounded - exact, variance += (high - exact) * (exact - low), up += rounded == high;
    }
  EXPECT_LT(std::abs(error), 4 * std::sqrt(variance));
  EXPECT_GT(up, x.numel() / 4);
}

// Of 16 tokens together; of the other operand, too, so that the GEMM over tokens stays what it is.
TEST(Nvfp4, rotates_what_is_summed_over_tokens) {
  at::manual_seed(5);
  const auto x = over_many_powers(37, 24), y = over_many_powers(37, 24);
  const auto turned = rotated_by_definition(x);
  EXPECT_LT((turned.t().mm(rotated_by_definition(y)) - x.to(at::kDouble).t().mm(y.to(at::kDouble))).abs().max().item<double>(), 1e-4);
  const auto got = quantize(x.to(device::test_device()), Quantization::nvfp4, OperandKind::activation, 0).cpu().to(at::kDouble);
  const auto scales = scales_of_nvfp4(turned, 16, 1);
  // A quotient near the middle of two numbers may go to either, since the rotation is rounded to fp32.
  const auto quotient = (turned / scales).abs().clamp_max(6), rounded = (got / scales).abs();
  const auto step = at::where(quotient < 2, 0.5, at::where(quotient < 4, 1.0, 2.0));
  EXPECT_TRUE((((rounded - quotient).abs() <= step * 0.5001) | (scales == 0)).all().item<bool>());
  EXPECT_TRUE(((got * turned >= 0) | (got == 0)).all().item<bool>());
}

TEST(Nvfp4, is_on_a_cpu_what_it_is_elsewhere) {
  at::manual_seed(6);
  for (const auto kind : {OperandKind::activation, OperandKind::weight, OperandKind::gradient, OperandKind::expert_gradient})
    for (const int64_t summed : {0, 1})
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        const auto x = over_many_powers(45, 130).to(dtype);
        EXPECT_TRUE(quantize(x, Quantization::nvfp4, kind, summed)
                        .equal(quantize(x.to(device::emulated_device(0)), Quantization::nvfp4, kind, summed).cpu()));
      }
}

TEST(Nvfp4, what_is_not_finite_leaves_nans) {
  for (const auto kind : {OperandKind::activation, OperandKind::gradient})
    for (const double broken : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      auto x = at::ones({40, 64});
      x[3][7] = broken;
      EXPECT_TRUE(quantize(x, Quantization::nvfp4, kind, 1)[3][7].isnan().item<bool>());
    }
}

}  // namespace
}  // namespace ingot::kernels
