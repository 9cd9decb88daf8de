#include "base/random.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numbers>
#include <set>
#include <vector>

#include "base/random_functions.h"

namespace ingot::base {
namespace {

// Known answers of Random123's own test vectors for philox4x32-10.
TEST(Philox, agrees_with_the_published_vectors) {
  EXPECT_EQ(philox(0, 0, 0), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(0xffffffffffffffff, 0xffffffffffffffff, 0xffffffffffffffff),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Normal, has_the_moments_of_a_standard_normal) {
  const uint64_t key = stream_key(7, "layer.weight");
  double sum = 0, squares = 0, fourth = 0;
  constexpr int kCount = 200000;
  for (int i = 0; i < kCount; ++i) {
    const double x = normal_at(key, static_cast<uint64_t>(i));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
  EXPECT_NEAR(fourth / kCount, 3, 0.1);
}

// Another implementation of these formulas, in Python's floats, gave the hash (FNV-1a of the doubles): a fused product, another order of
// operations or another coefficient would give another one.
TEST(Normal, has_the_same_bits_with_every_compiler) {
  uint64_t hash = 0xcbf29ce484222325;
  for (uint64_t i = 0; i < 100000; ++i) hash = (hash ^ std::bit_cast<uint64_t>(normal_at(2026, i))) * 0x100000001b3;
  EXPECT_EQ(hash, 0x92dd77714fa4ccc7u);
  EXPECT_EQ(normal_at(2026, 0), 0x1.f5e1fd151651ap-2);
  EXPECT_EQ(normal_at(2026, 1), -0x1.b5be29f989afep-4);
}

TEST(Normal, of_a_range_are_those_of_its_elements) {
  for (uint64_t first = 0; first < 4; ++first)
    for (size_t count = 0; count < 6; ++count) {
      std::vector<double> range(count + 1, -99);
      normals_at(5, first, std::span(range).first(count));
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(range[i], normal_at(5, first + i));
      EXPECT_EQ(range[count], -99);
    }
}

// In units of the expected value's last place.
double error_of(double found, long double expected) {
  const auto nearest = static_cast<double>(expected);
  if (nearest == 0) return found == 0 ? 0 : INFINITY;
  const double ulp = std::nextafter(std::abs(nearest), INFINITY) - std::abs(nearest);
  return static_cast<double>(std::abs(found - expected)) / ulp;
}

// 0 <= u < 1 as the generator has them: both ends, close to every eighth of a turn on either side, and any.
std::vector<double> units() {
  std::vector<double> all;
  for (int eighth = 0; eighth <= 8; ++eighth)
    for (int bit = 0; bit <= 53; ++bit)
      for (const double distance : {0.0, std::ldexp(1.0, bit - 53), -std::ldexp(1.0, bit - 53), std::ldexp(3.0, bit - 53)})
        all.push_back(eighth / 8.0 + distance);
  std::erase_if(all, [](double u) { return u < 0 || u >= 1; });
  for (uint64_t i = 0; i < 300000; ++i) all.push_back(uniform_at(8, i));
  return all;
}

TEST(Normal, is_made_of_a_logarithm_within_one_ulp) {
  double worst = 0;
  const auto check = [&](double x) {
    if (x > 0 && x <= 1) worst = std::max(worst, error_of(log_of(x), std::log(static_cast<long double>(x))));
  };
  for (const double u : units()) check(1 - u);
  for (int exponent = 0; exponent < 53; ++exponent)
    for (const double m : {1.0, 1 + 0x1p-52, std::numbers::sqrt2, std::nextafter(std::numbers::sqrt2, 2.0), 2 - 0x1p-52, 1.3, 1.7})
      check(std::ldexp(m, -exponent - 1));
  EXPECT_LT(worst, 1);
  EXPECT_EQ(log_of(1), 0);
}

TEST(Normal, is_made_of_a_sine_and_a_cosine_within_two_ulp) {
  constexpr long double kFull = 2 * std::numbers::pi_v<long double>;
  double worst = 0;
  for (const double u : units()) {
    const double quarter = std::round(4 * u);
    const long double rest = u - quarter / 4, sine = std::sin(kFull * rest), cosine = std::cos(kFull * rest);  // u - … is exact
    const long double sines[] = {sine, cosine, -sine, -cosine};
    const auto found = sin_cos_of_turns(u);
    worst = std::max({worst, error_of(found.sin, sines[static_cast<int>(quarter) % 4]),
                      error_of(found.cos, sines[(static_cast<int>(quarter) + 1) % 4])});
  }
  EXPECT_LT(worst, 1.6);
}

TEST(StreamKey, differs_by_seed_and_by_name) {
  EXPECT_NE(stream_key(1, "a"), stream_key(2, "a"));
  EXPECT_NE(stream_key(1, "a"), stream_key(1, "b"));
  EXPECT_EQ(stream_key(1, "a"), stream_key(1, "a"));
}

TEST(Permute, is_a_permutation_for_every_size) {
  for (const uint64_t size : {1u, 2u, 3u, 7u, 64u, 65u, 1000u}) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < size; ++i) seen.insert(permute(99, i, size));
    EXPECT_EQ(seen.size(), size);
    EXPECT_EQ(*seen.rbegin(), size - 1);
  }
}

}  // namespace
}  // namespace ingot::base
