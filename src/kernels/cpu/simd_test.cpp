#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/simd_cases.h"

namespace ingot::kernels::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<std::pair<std::string, const SimdCases*>> every_instruction_set() {
  std::vector<std::pair<std::string, const SimdCases*>> all{{"portable", &portable::simd_cases}};
#ifdef INGOT_X86_ISAS
  for (const Isa isa : supported_isas()) {
    if (isa == Isa::avx2) all.emplace_back("avx2", &avx2::simd_cases);
    if (isa == Isa::avx512) all.emplace_back("avx512", &avx512::simd_cases);
  }
#endif
  all.emplace_back("wide", &wide::simd_cases);
  return all;
}

using Function = void (*)(const float*, float*, int64_t);

// The largest error over [low, high] in units of the last place of the exact value.
double worst_error(Function function, double (*exact)(double), double low, double high) {
  constexpr int64_t kCount = 1 << 18;
  std::vector<float> x(kCount), y(kCount);
  for (int64_t i = 0; i < kCount; ++i) x[i] = static_cast<float>(low + (high - low) * static_cast<double>(i) / kCount);
  function(x.data(), y.data(), kCount);
  double worst = 0;
  for (int64_t i = 0; i < kCount; ++i) {
    const double expected = exact(x[i]);
    const double ulp = std::ldexp(1.0, std::ilogb(expected) - 23);
    worst = std::max(worst, std::abs(y[i] - expected) / ulp);
  }
  return worst;
}

float at(Function function, float x) {
  std::vector<float> in(16, x), out(16);
  function(in.data(), out.data(), 16);
  return out[3];
}

TEST(Simd, exponentials_are_within_two_units_in_the_last_place) {
  for (const auto& [isa, cases] : every_instruction_set()) {
    SCOPED_TRACE(isa);
    EXPECT_LT(worst_error(cases->exp2, std::exp2, -126, 127.4), 2);
    EXPECT_LT(worst_error(cases->exp2, std::exp2, -1, 1), 2);
    EXPECT_LT(worst_error(cases->exp, std::exp, -87.3, 88.3), 2);
    EXPECT_LT(worst_error(cases->exp, std::exp, -1, 1), 2);
    EXPECT_EQ(at(cases->exp2, 0), 1);
    EXPECT_EQ(at(cases->exp, 0), 1);
    EXPECT_EQ(at(cases->exp2, -17), std::ldexp(1.0f, -17));
  }
}

TEST(Simd, exponentials_of_the_extremes_are_zero_infinity_and_nan) {
  for (const auto& [isa, cases] : every_instruction_set()) {
    SCOPED_TRACE(isa);
    for (const Function function : {cases->exp, cases->exp2}) {
      for (const float x : {-kInfinity, -1e30f, -1000.0f, -127.0f}) EXPECT_EQ(at(function, x), 0) << x;
      for (const float x : {kInfinity, 1e30f, 1000.0f, 128.0f}) EXPECT_EQ(at(function, x), kInfinity) << x;
      EXPECT_TRUE(std::isnan(at(function, kNan)));
      EXPECT_TRUE(std::isnan(at(function, std::bit_cast<float>(0x7fc00123u))));
    }
  }
}

TEST(Simd, sigmoids_are_within_three_units_and_end_at_zero_and_one) {
  const auto exact = +[](double x) { return 1 / (1 + std::exp(-x)); };
  for (const auto& [isa, cases] : every_instruction_set()) {
    SCOPED_TRACE(isa);
    EXPECT_LT(worst_error(cases->sigmoid, exact, -80, 80), 3);
    EXPECT_LT(worst_error(cases->sigmoid, exact, -1, 1), 3);
    EXPECT_EQ(at(cases->sigmoid, 0), 0.5f);
    for (const float x : {-kInfinity, -3e38f, -1000.0f, -100.0f}) EXPECT_EQ(at(cases->sigmoid, x), 0) << x;
    for (const float x : {kInfinity, 3e38f, 100.0f}) EXPECT_EQ(at(cases->sigmoid, x), 1) << x;
    EXPECT_TRUE(std::isnan(at(cases->sigmoid, kNan)));
  }
}

TEST(Simd, bf16_is_rounded_to_nearest_even) {
  // value, expected upper half: a tie goes to the even one, overflow to infinity, a NaN stays one whatever its bits
  const std::vector<std::pair<uint32_t, uint16_t>> pairs = {
      {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82}, {0x3f817fff, 0x3f81}, {0xbf818000, 0xbf82},
      {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80}, {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x00018000, 0x0002},
      {0x7f800001, 0x7fc0}, {0x7fffffff, 0x7fc0}, {0x7fc00000, 0x7fc0}, {0x7f7f7fff, 0x7f7f}};
  for (const auto& [isa, cases] : every_instruction_set()) {
    std::vector<float> in(16), back(16);
    std::vector<uint16_t> out(16);
    for (size_t i = 0; i < 16; ++i) in[i] = std::bit_cast<float>(pairs[i].first);
    cases->to_bf16(in.data(), out.data(), 16);
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(out[i], pairs[i].second) << isa << ", " << std::hex << pairs[i].first;
    cases->from_bf16(out.data(), back.data(), 16);
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(back[i]), static_cast<uint32_t>(out[i]) << 16) << isa;
  }
}

TEST(Simd, reductions_give_every_lane_the_whole_vector) {
  std::vector<float> in(32), out(32);
  for (size_t i = 0; i < 32; ++i) in[i] = static_cast<float>(static_cast<int64_t>(i * 37 % 32) - 16);
  for (const auto& [isa, cases] : every_instruction_set()) {
    cases->sums(in.data(), out.data(), 32);
    for (int64_t i = 0; i < 32; ++i) {
      const auto begin = in.begin() + i / cases->lanes * cases->lanes;
      EXPECT_EQ(out[i], std::accumulate(begin, begin + cases->lanes, 0.0f)) << isa;
    }
    cases->maxima(in.data(), out.data(), 32);
    for (int64_t i = 0; i < 32; ++i) {
      const auto begin = in.begin() + i / cases->lanes * cases->lanes;
      EXPECT_EQ(out[i], *std::max_element(begin, begin + cases->lanes)) << isa;
    }
  }
}

TEST(Simd, as_many_vectors_as_lanes_are_added_up_together) {
  std::vector<float> in(256), out(16);
  for (size_t i = 0; i < 256; ++i) in[i] = static_cast<float>(static_cast<int64_t>(i * 37 % 101) - 50);  // sums of integers are exact
  for (const auto& [isa, cases] : every_instruction_set()) {
    cases->sums_of_vectors(in.data(), out.data());
    for (int64_t i = 0; i < cases->lanes; ++i) {
      const auto begin = in.begin() + i * cases->lanes;
      EXPECT_EQ(out[static_cast<size_t>(i)], std::accumulate(begin, begin + cases->lanes, 0.0f)) << isa << ", vector " << i;
    }
  }
}

TEST(Simd, a_part_of_a_vector_touches_only_its_elements) {
  const std::vector<float> in = {1, 2, 3, 4};
  for (const auto& [isa, cases] : every_instruction_set()) {
    std::vector<float> out(4, 9);
    cases->copy_part(in.data(), out.data(), 3);
    EXPECT_EQ(out, (std::vector<float>{1, 2, 3, 9})) << isa;
  }
}

}  // namespace
}  // namespace ingot::kernels::cpu
