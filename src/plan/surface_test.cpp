#include "plan/surface.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ingot::plan {
namespace {

TEST(Surface, is_exact_where_measured_and_constant_outside) {
  Surface surface;
  surface.add({16, 1, 1}, 10);
  surface.add({64, 1, 1}, 40);
  surface.add({1024, 1, 1}, 44);
  EXPECT_DOUBLE_EQ(surface.at({16, 1, 1}), 10);
  EXPECT_DOUBLE_EQ(surface.at({64, 1, 1}), 40);
  EXPECT_DOUBLE_EQ(surface.at({2, 1, 1}), 10);
  EXPECT_DOUBLE_EQ(surface.at({1e9, 1, 1}), 44);
}

TEST(Surface, follows_a_power_law_between_the_points_of_a_grid) {
  Surface surface;
  const auto law = [](double m, double n, double k) { return 3 * std::pow(m, 0.4) * std::pow(n, 0.2) * std::pow(k, -0.1); };
  for (const double m : {16, 128, 1024})
    for (const double n : {32, 256})
      for (const double k : {8, 64, 512}) surface.add({m, n, k}, law(m, n, k));
  for (const auto& [m, n, k] : {std::tuple{40.0, 100.0, 20.0}, {700.0, 33.0, 500.0}, {1000.0, 250.0, 9.0}})
    EXPECT_NEAR(surface.at({m, n, k}) / law(m, n, k), 1, 0.02) << m << " " << n << " " << k;
}

TEST(Surface, stays_within_its_neighbours_where_rates_jump) {
  Surface surface;
  for (const double size : {1, 2, 4, 8}) surface.add({size, 1, 1}, 100);
  surface.add({16, 1, 1}, 10);
  surface.add({32, 1, 1}, 10);
  EXPECT_LE(surface.at({7, 1, 1}), 100);
  EXPECT_GE(surface.at({7, 1, 1}), 10);
  EXPECT_GE(surface.at({30, 1, 1}), 10);
}

TEST(Surface, one_measurement_holds_everywhere) {
  Surface surface;
  surface.add({5, 6, 7}, 3);
  EXPECT_NEAR(surface.at({1, 1000, 2}), 3, 1e-12);
}

}  // namespace
}  // namespace ingot::plan
