#include "plan/balance.h"

#include <gtest/gtest.h>

#include "plan/test_support.h"

namespace ingot::plan {
namespace {

// Pair by pair.
double intensity_by_counting(int64_t seq, int64_t window, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t element_bytes) {
  int64_t pairs = 0;
  for (int64_t query = 0; query < seq; ++query)
    for (int64_t key = 0; key <= query; ++key) pairs += window == 0 || query - key < window ? 1 : 0;
  const double elements = static_cast<double>(2 * seq * (heads + kv_heads) * head_dim);  // q, out, k and v
  return static_cast<double>(4 * pairs * heads * head_dim) / (elements * static_cast<double>(element_bytes));
}

TEST(Balance, attention_counts_the_pairs_that_a_window_leaves) {
  for (const int64_t window : {0, 1, 3, 16, 40}) {
    const AttentionTime a{"bf16", 3, 40, 6, 2, 8, 1, 1, window};
    EXPECT_NEAR(intensity_of(a), intensity_by_counting(40, window, 6, 2, 8, 2), 1e-12) << window;
    EXPECT_DOUBLE_EQ(flops_of(a, true), 2 * flops_of(a, false));
  }
}

TEST(Balance, turning_point_is_where_the_intensity_reaches_what_is_asked) {
  for (const int64_t window : {0, 64}) {
    for (const int64_t kv_heads : {1, 4, 8}) {
      for (const double wanted : {2.0, 9.0, 20.0}) {
        const AttentionTime shape{"fp32", 1, 16, 8, kv_heads, 32, 1, 1, window};
        const auto turn = turning_seq(shape, wanted);
        if (!turn) {
          EXPECT_LT(intensity_by_counting(3000, window, 8, kv_heads, 32, 4), wanted) << "it does get there";
          continue;
        }
        const auto below = static_cast<int64_t>(*turn), above = below + 1;
        EXPECT_LE(intensity_by_counting(below, window, 8, kv_heads, 32, 4), wanted) << *turn;
        EXPECT_GE(intensity_by_counting(above, window, 8, kv_heads, 32, 4), wanted) << *turn;
      }
    }
  }
  EXPECT_DOUBLE_EQ(*turning_seq({"bf16", 1, 16, 8, 8, 32, 1, 1}, 1e-3), 1) << "it has one token at least";
  // With 8 of 8 heads in fp32 intensity is keys / 4: a window of 64 keeps it below 16.
  EXPECT_FALSE(turning_seq({"fp32", 1, 16, 8, 8, 32, 1, 1, 64}, 16));
  EXPECT_TRUE(turning_seq({"fp32", 1, 16, 8, 8, 32, 1, 1, 64}, 15.9));
}

TEST(Balance, is_of_plain_gemms_and_streams_that_leave_the_caches) {
  auto p = round_machine(1e11, 2e10);
  p.memory.push_back({"read", 1 << 24, 9e10});
  p.memory.push_back({"host_to_device_pinned", 1 << 24, 5e10});
  p.memory.push_back({"copy", 1 << 24, 3e10});
  p.gemm.push_back({"fp32", "batched", "forward", 64, 64, 64, 9e11, 8});
  const auto balance = balance_of(p, "fp32");
  ASSERT_TRUE(balance);
  EXPECT_DOUBLE_EQ(balance->flops_per_byte(), 5);
  p.memory.erase(p.memory.begin());  // the triad
  EXPECT_DOUBLE_EQ(balance_of(p, "fp32")->bytes_per_s, 3e10);
  p.memory.pop_back();
  EXPECT_FALSE(balance_of(p, "fp32")) << "a read or a copy to elsewhere is no stream";
  EXPECT_FALSE(balance_of(round_machine(1e11, 2e10), "fp64"));
}

TEST(Balance, grouped_gemms_have_the_flops_of_all_and_the_intensity_of_one) {
  const GemmRate one{"bf16", "plain", "forward", 2, 3, 5, 1};
  GemmRate many{"bf16", "grouped", "forward", 2, 3, 5, 1, 4, 2};
  EXPECT_DOUBLE_EQ(flops_of(many), 4 * flops_of(one));
  EXPECT_DOUBLE_EQ(intensity_of(many), intensity_of(one));
  many.pass = "grad_weight";
  EXPECT_DOUBLE_EQ(intensity_of(many), 60.0 / (25 * 2 + 6 * 8));
  many.kind = "batched";
  EXPECT_DOUBLE_EQ(intensity_of(many), 60.0 / (31 * 2)) << "they leave in their own dtype";
}

}  // namespace
}  // namespace ingot::plan
