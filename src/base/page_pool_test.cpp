#include "base/page_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/process.h"

namespace ingot::base {
namespace {

constexpr size_t kMiB = 1 << 20;

TEST(PagePool, blocks_are_aligned_apart_and_reused) {
  PagePool pool(64 * kMiB);
  void *a = pool.take(100'000), *b = pool.take(1);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % PagePool::kAlignment, 0u);
  EXPECT_GE(static_cast<char*>(b) - static_cast<char*>(a), 100'000);
  EXPECT_TRUE(pool.owns(a));
  EXPECT_FALSE(pool.owns(&pool));
  pool.give(a);
  EXPECT_EQ(pool.take(100'000), a);
}

TEST(PagePool, powers_of_two_do_not_share_their_place_in_a_page) {
  PagePool pool(64 * kMiB);
  const auto place = [&] { return reinterpret_cast<uintptr_t>(pool.take(kMiB)) % 4096; };
  const auto first = place(), second = place(), third = place();
  EXPECT_NE(first, second);
  EXPECT_NE(second, third);
  EXPECT_NE(first, third);
}

TEST(PagePool, free_neighbours_become_one) {
  PagePool pool(4 * kMiB);
  void* blocks[] = {pool.take(kMiB), pool.take(kMiB), pool.take(kMiB)};
  EXPECT_EQ(pool.take(2 * kMiB), nullptr);
  pool.give(blocks[0]);
  pool.give(blocks[2]);
  pool.give(blocks[1]);
  EXPECT_NE(pool.take(3 * kMiB), nullptr);
}

TEST(PagePool, what_does_not_fit_is_refused_and_the_pool_goes_on) {
  PagePool pool(8 * kMiB);
  EXPECT_EQ(pool.take(9 * kMiB), nullptr);
  EXPECT_EQ(pool.take(SIZE_MAX), nullptr);
  EXPECT_NE(pool.take(4 * kMiB), nullptr);
}

TEST(PagePool, a_block_given_back_twice_is_an_error) {
  PagePool pool(8 * kMiB);
  void* block = pool.take(kMiB);
  int elsewhere = 0;
  pool.give(block);
  EXPECT_THROW(pool.give(block), Error);
  EXPECT_THROW(pool.give(&elsewhere), Error);
}

// Two blocks with a hole between them, and then one that does not fit into the hole: without giving pages back the pool would
// hold both the hole and the new block.
TEST(PagePool, holds_no_more_than_was_in_use_at_once) {
  PagePool pool(512 * kMiB);
  const auto fill = [&](size_t bytes) { return std::memset(pool.take(bytes), 1, bytes); };
  void* hole = fill(40 * kMiB);
  fill(kMiB);
  pool.give(hole);
  const auto before = resident_bytes();
  fill(44 * kMiB);
  const auto use = pool.use();
  EXPECT_LE(use.resident_bytes, use.peak_in_use_bytes * 66 / 64);
  EXPECT_GT(use.returned_bytes, 38 * kMiB);
  EXPECT_LT(resident_bytes() - before, static_cast<int64_t>(10 * kMiB));  // by the kernel's count too
}

TEST(PagePool, a_pattern_that_repeats_takes_no_pages_from_the_kernel_again) {
  PagePool pool(512 * kMiB);
  const auto step = [&] {
    std::vector<void*> blocks;
    for (size_t i = 1; i < 20; ++i) blocks.push_back(std::memset(pool.take(i * 300'000), 1, i * 300'000));
    for (void* block : blocks) pool.give(block);
  };
  step();
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  for (int i = 0; i < 5; ++i) step();
  getrusage(RUSAGE_SELF, &after);
  EXPECT_EQ(pool.use().returned_bytes, 0u);
  EXPECT_LT(after.ru_minflt - before.ru_minflt, 100);
}

TEST(PagePool, trim_returns_what_is_free) {
  PagePool pool(512 * kMiB);
  void* kept = std::memset(pool.take(3 * kMiB), 7, 3 * kMiB);
  void* freed = std::memset(pool.take(50 * kMiB), 1, 50 * kMiB);
  pool.give(freed);
  pool.trim();
  EXPECT_LT(pool.use().resident_bytes, 4 * kMiB);
  EXPECT_EQ(pool.use().peak_in_use_bytes, pool.use().in_use_bytes);
  EXPECT_EQ(static_cast<char*>(kept)[3 * kMiB - 1], 7);
}

// Contents are never shared and never lost, whatever comes and goes; the count of resident pages stays the kernel's.
TEST(PagePool, random_blocks_keep_their_contents) {
  PagePool pool(256 * kMiB);
  std::mt19937_64 random(3);
  struct Block {
    unsigned char* at;
    size_t bytes;
    unsigned char mark;
  };
  std::vector<Block> blocks;
  for (int i = 0; i < 4000; ++i) {
    if (blocks.size() > 40 || (!blocks.empty() && random() % 2)) {
      const size_t which = random() % blocks.size();
      const auto block = blocks[which];
      ASSERT_EQ(block.at[0], block.mark);
      ASSERT_EQ(block.at[block.bytes / 2], block.mark);
      ASSERT_EQ(block.at[block.bytes - 1], block.mark);
      pool.give(block.at);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
    } else {
      const size_t bytes = 1 + random() % (random() % 8 ? 200'000 : 3'000'000);
      auto* at = static_cast<unsigned char*>(pool.take(bytes));
      ASSERT_NE(at, nullptr);
      blocks.push_back({at, bytes, static_cast<unsigned char>(random())});
      std::memset(at, blocks.back().mark, bytes);
    }
    const auto use = pool.use();
    ASSERT_LE(use.resident_bytes, use.peak_in_use_bytes + use.peak_in_use_bytes / 64 + 4096 * 90);  // blocks share pages at both ends
  }
  for (const auto& block : blocks) pool.give(block.at);
  EXPECT_EQ(pool.use().in_use_bytes, 0u);
  EXPECT_NE(pool.take(255 * kMiB), nullptr);  // all of it is one range again
}

TEST(PagePool, threads_may_take_and_give_at_once) {
  PagePool pool(512 * kMiB);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&pool, t] {
      for (size_t i = 0; i < 500; ++i) {
        auto* at = static_cast<unsigned char*>(pool.take(1000 + 977 * i));
        std::memset(at, t, 1000 + 977 * i);
        EXPECT_EQ(at[999], t);
        pool.give(at);
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool.use().in_use_bytes, 0u);
}

}  // namespace
}  // namespace ingot::base
