// The host as a GPU: what it must catch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
namespace {

using testing::HasSubstr;

TEST(HostBlock, sums_over_a_block_are_the_same_on_every_thread) {
  std::vector<float> sums(96);
  host::run(1, 96, 3, [&] { sums[static_cast<size_t>(thread_index())] = block_sum(static_cast<float>(thread_index())); });
  EXPECT_THAT(sums, testing::Each(96 * 95 / 2));
}

std::string error_in(const std::function<void()>& kernel) {
  try {
    host::run(1, 64, 0, kernel);
  } catch (const base::Error& error) {
    return error.what();
  }
  return "none";
}

TEST(HostBlock, threads_that_do_not_come_to_a_barrier_are_an_error) {
  const auto error = error_in([] {
    if (thread_index() < 3) return;
    barrier();
  });
  EXPECT_THAT(error, testing::AllOf(HasSubstr("3 threads have returned"), HasSubstr("61 threads wait at the barrier of line")));
  EXPECT_THAT(error_in([] { thread_index() < 3 ? barrier(1) : barrier(2); }), HasSubstr("3 threads wait at the barrier of line 1"));
  EXPECT_THAT(error_in([] {
                if (thread_index() % 2 == 0) shuffle_xor(1.0F, 1);
              }),
              HasSubstr("wait for their wave"));
}

TEST(HostBlock, shared_memory_that_nobody_wrote_is_not_a_number) {
  float found = 0;
  host::run(1, 32, 0, [&] {
    INGOT_SHARED_FLOATS(area, 4);
    if (thread_index() == 0) found = area[3];
  });
  EXPECT_TRUE(std::isnan(found));
}

// A neighbour's value without a barrier: right in the order of the threads, wrong in others.
TEST(HostBlock, a_missing_barrier_shows_in_another_order_of_threads) {
  const auto sum_of = [](uint64_t seed) {
    float sum = 0;
    host::run(1, 64, seed, [&] {
      INGOT_SHARED_FLOATS(area, 64);
      area[thread_index()] = 1;
      sum += thread_index() > 0 ? area[thread_index() - 1] : 0;
    });
    return sum;
  };
  EXPECT_EQ(sum_of(0), 63);
  EXPECT_TRUE(std::isnan(sum_of(1)));
}

TEST(HostBlock, what_a_kernel_throws_comes_out) {
  EXPECT_EQ(error_in([] { throw base::Error("no"); }), "no");
}

}  // namespace
}  // namespace ingot::kernels::gpu
