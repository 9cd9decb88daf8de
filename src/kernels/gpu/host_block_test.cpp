// The host as a GPU: what it must catch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/gpu/matrix.h"

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

// A neighbour's value, with a barrier between or without: in the order of the threads the sum is right all the same.
std::string error_of_neighbours(uint64_t seed, bool has_barrier, bool are_apart, float& sum) {
  sum = 0;
  const auto kernel = [&] {
    INGOT_SHARED_FLOATS(area, 64);
    if (are_apart) barrier(7);
    area[thread_index()] = 1;
    if (has_barrier) barrier(8);
    sum += thread_index() > 0 ? area[thread_index() - 1] : 0;
  };
  try {
    host::run(1, 64, seed, kernel, "Neighbours");
  } catch (const base::Error& error) {
    return error.what();
  }
  return "none";
}

TEST(HostBlock, a_missing_barrier_is_reported_in_every_order_of_threads) {
#if !defined(INGOT_LOGS_ACCESSES)
  GTEST_SKIP() << "a sanitizer's build, or another compiler than GCC";
#else
  float sum = 0;
  for (const uint64_t seed : {0, 1, 2, 3}) EXPECT_EQ(error_of_neighbours(seed, true, false, sum), "none");
  EXPECT_EQ(sum, 63);
  EXPECT_EQ(error_of_neighbours(0, false, false, sum),
            "Neighbours, block 0 of 1: thread 1 reads byte 0 of shared memory 1 that thread 0 wrote, with no barrier between them");
  EXPECT_EQ(sum, 63);
  for (const uint64_t seed : {1, 2, 3})
    EXPECT_THAT(error_of_neighbours(seed, false, true, sum),
                testing::MatchesRegex("Neighbours, block 0 of 1: thread [0-9]+ (reads|writes) byte [0-9]+ of shared memory 1 that thread "
                                      "[0-9]+ (wrote|read), with no barrier between them \\(both behind that of line 7\\)"));
#endif
}

// Behind a barrier others may write what was read before it, and a thread may read what it wrote itself.
TEST(HostBlock, what_a_barrier_orders_is_no_race) {
  std::vector<float> sums(64);
  host::run(1, 64, 5, [&] {
    INGOT_SHARED_FLOATS(area, 64);
    float sum = 0;
    for (int round = 0; round < 3; ++round) {
      area[thread_index()] = static_cast<float>(round);
      area[thread_index()] += 1;
      barrier();
      sum += area[(thread_index() + 7) % 64] + area[5];
      barrier();
    }
    sums[static_cast<size_t>(thread_index())] = sum;
  });
  EXPECT_THAT(sums, testing::Each(12));
}

// Of bf16 two lie in a word; a GPU writes one without the other.
TEST(HostBlock, neighbours_in_a_word_are_no_race) {
  EXPECT_EQ(error_in([] {
              INGOT_SHARED(Bf16, area, 64);
              from_float(1.0F, area[thread_index()]);
            }),
            "none");
}

// A wave turns a matrix in place: all of its threads have read it when one of them has the product, but not when one has only loaded it.
TEST(HostBlock, a_matrix_instruction_orders_what_its_wave_has_read_before_what_it_writes) {
#if !defined(INGOT_LOGS_ACCESSES)
  GTEST_SKIP() << "a sanitizer's build, or another compiler than GCC";
#else
  const auto error_with = [](bool multiplies) {
    try {
      host::run(1, kWave, 0, [=] {
        INGOT_SHARED(Bf16, matrix, kMatrix * kMatrix);
        for (int i = thread_index(); i < kMatrix * kMatrix; i += kWave) from_float(1.0F, matrix[i]);
        barrier();
        const auto left = load_left<Order::by_column>(matrix, kMatrix);
        MatrixSum sums{};
        if (multiplies) multiply(sums, left, ones_of_left());
        store(sums, matrix, kMatrix);
      });
    } catch (const base::Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(error_with(true), "none");
  EXPECT_THAT(error_with(false), HasSubstr("with no barrier between them"));
#endif
}

TEST(HostBlock, what_a_kernel_throws_comes_out) {
  EXPECT_EQ(error_in([] { throw base::Error("no"); }), "no");
}

}  // namespace
}  // namespace ingot::kernels::gpu
