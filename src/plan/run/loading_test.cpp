#include "plan/run/loading.h"

#include <gtest/gtest.h>

namespace ingot::plan {
namespace {

// The numbers of the ZAYA1 paper: 64 MiB and 16,384 pages an iteration, 6,554 sigma page reads a second, break-even at 0.234 sigma s.
TEST(DataLoading, formulas_give_the_numbers_of_the_paper) {
  const LoadingShape zaya1{.batch = 4096, .seq = 4096, .token_bytes = 4};
  EXPECT_EQ(pages_per_iteration(zaya1, 1), 16384);
  EXPECT_NEAR(required_reads_per_s(zaya1, 1, 2.5), 6554, 0.5);
  EXPECT_NEAR(break_even_s(zaya1, 1, 70000), 0.234, 0.0005);
  for (const double sigma : {2.0, 4.0, 8.0}) {
    EXPECT_DOUBLE_EQ(required_reads_per_s(zaya1, sigma, 2.5), sigma * 6553.6);
    EXPECT_DOUBLE_EQ(break_even_s(zaya1, sigma, 70000), sigma * 16384 / 70000);
  }
  EXPECT_LT(break_even_s(zaya1, 8, 70000), 2.5);  // "safe even at 8"
  EXPECT_DOUBLE_EQ(scatter_of(zaya1, 0), 1);
  EXPECT_DOUBLE_EQ(scatter_of(zaya1, 4), 2);  // a sample fills four pages
}

}  // namespace
}  // namespace ingot::plan
