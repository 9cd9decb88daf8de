#include "data/ordered_pipeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <random>
#include <stdexcept>

namespace ingot::data {
namespace {

// An item counts its bytes as long as it lives, as memory does.
class Held {
 public:
  Held() = default;
  Held(std::atomic<int64_t>& all, std::atomic<int64_t>& most, int64_t bytes, int number) : all_(&all), bytes_(bytes), number_(number) {
    const int64_t now = all += bytes;
    for (int64_t seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
  }
  Held(Held&& other) noexcept { *this = std::move(other); }
  Held& operator=(Held&& other) noexcept {
    std::swap(all_, other.all_), std::swap(bytes_, other.bytes_), std::swap(number_, other.number_);
    return *this;
  }
  ~Held() {
    if (all_) *all_ -= bytes_;
  }
  int64_t bytes() const { return bytes_; }
  int number() const { return number_; }

 private:
  std::atomic<int64_t>* all_ = nullptr;
  int64_t bytes_ = 0;
  int number_ = -1;
};

TEST(OrderedPipeline, holds_no_more_bytes_than_it_may_and_one_item_that_waits) {
  for (const int workers : {1, 3, 8}) {
    std::mt19937 random(static_cast<unsigned>(workers));
    std::atomic<int64_t> all = 0, most = 0;
    int produced = 0, consumed = 0;
    const OrderedLimits<Held> limits{workers, 16, 100, [](const Held& item) { return item.bytes(); }};
    run_ordered<Held, Held>(
        limits,
        [&](Held& item) {
          if (produced == 400) return false;
          item = Held(all, most, produced % 50 == 49 ? 150 : 1 + static_cast<int64_t>(random() % 60), produced);  // 150: goes alone
          ++produced;
          return true;
        },
        [](Held item) {
          std::this_thread::sleep_for(std::chrono::microseconds(item.number() % 7 * 30));
          return item;
        },
        [&](Held item) { EXPECT_EQ(item.number(), consumed++); });
    EXPECT_EQ(consumed, 400);
    EXPECT_EQ(all, 0);
    EXPECT_LE(most, 150 + 150);
    EXPECT_GT(most, 60);
  }
}

TEST(OrderedPipeline, the_earliest_error_ends_it_while_others_wait_for_room) {
  int produced = 0;
  const OrderedLimits<int> limits{3, 16, 2, [](const int&) { return int64_t{2}; }};
  EXPECT_THROW((run_ordered<int, int>(
                   limits, [&](int& item) { return item = produced++, true; },
                   [](int item) { return item == 5 ? throw std::runtime_error("five") : item; }, [](int) {})),
               std::runtime_error);
}

}  // namespace
}  // namespace ingot::data
