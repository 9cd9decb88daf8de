#include "comm/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"

namespace ingot::comm {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Ledgers : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / ("ledgers_" + std::to_string(getpid()));
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }

  // Rank `rank` does these collectives of fp32, each of the given number of elements, on an axis of ranks 0 to 2.
  void write(int rank, const std::vector<std::pair<Kind, int64_t>>& operations, size_t capacity = 1024) {
    Ledger ledger(rank, capacity);
    uint64_t sequence = 0;
    for (const auto& [kind, elements] : operations) {
      ledger.set_step(static_cast<int64_t>(sequence));
      const auto tensor = at::ones({elements}, at::kFloat);
      const auto ticket = ledger.start("data", {0, 1, 2}, {.kind = kind, .input = tensor, .output = tensor, .sequence = ++sequence});
      ledger.finish(ticket);
    }
    ledger.write(folder, 3, "test");
  }
  fs::path folder;
};

TEST_F(Ledgers, ranks_that_agree_have_not_diverged) {
  for (int rank = 0; rank < 3; ++rank) write(rank, {{Kind::all_reduce, 4}, {Kind::all_gather, 8}});
  EXPECT_EQ(compare(read_ledgers(folder)).rank, -1);
}

TEST_F(Ledgers, another_order_is_found_at_its_first_operation) {
  write(0, {{Kind::all_reduce, 4}, {Kind::all_gather, 8}, {Kind::all_reduce, 2}});
  write(1, {{Kind::all_reduce, 4}, {Kind::all_reduce, 2}, {Kind::all_gather, 8}});
  write(2, {{Kind::all_reduce, 4}, {Kind::all_gather, 8}, {Kind::all_reduce, 2}});
  const auto found = compare(read_ledgers(folder));
  EXPECT_EQ(found.rank, 1);
  EXPECT_THAT(found.explanation, AllOf(HasSubstr("rank 1 did all_reduce of 8 B"), HasSubstr("all_gather of 32 B"), HasSubstr("step 1")));
}

TEST_F(Ledgers, another_size_is_found) {
  write(0, {{Kind::all_reduce, 4}});
  write(1, {{Kind::all_reduce, 4}});
  write(2, {{Kind::all_reduce, 5}});
  EXPECT_EQ(compare(read_ledgers(folder)).rank, 2);
}

TEST_F(Ledgers, a_rank_that_stopped_earlier_is_absent) {
  write(0, {{Kind::all_reduce, 4}, {Kind::barrier, 1}});
  write(1, {{Kind::all_reduce, 4}, {Kind::barrier, 1}});
  write(2, {{Kind::all_reduce, 4}});
  const auto found = compare(read_ledgers(folder));
  EXPECT_EQ(found.rank, 2);
  EXPECT_THAT(found.explanation, AllOf(HasSubstr("did not come to barrier"), HasSubstr("its last one there was number 1")));
}

TEST_F(Ledgers, a_rank_without_a_ledger_is_absent) {
  write(0, {{Kind::all_reduce, 4}});
  write(2, {{Kind::all_reduce, 4}});
  const auto found = compare(read_ledgers(folder));
  EXPECT_EQ(found.rank, 1);
  EXPECT_THAT(found.explanation, HasSubstr("rank 1 left no flight recording"));
}

TEST_F(Ledgers, what_a_ring_buffer_forgot_is_no_divergence) {
  write(0, {{Kind::all_reduce, 4}, {Kind::all_gather, 8}, {Kind::all_reduce, 2}}, 2);
  write(1, {{Kind::all_reduce, 4}, {Kind::all_gather, 8}, {Kind::all_reduce, 2}});
  write(2, {{Kind::all_reduce, 4}, {Kind::all_gather, 8}, {Kind::all_reduce, 2}});
  EXPECT_EQ(compare(read_ledgers(folder)).rank, -1);
}

TEST_F(Ledgers, files_of_another_kind_are_refused) {
  for (const char* content : {"", "{", "[]", "{\"format\": 1}", "{\"format\": 9}",
                              "{\"format\": 1, \"rank\": 0, \"world\": 1, \"reason\": \"\", \"entries\": [3]}"}) {
    std::ofstream(folder / "ledger-rank-0.json") << content;
    EXPECT_THROW(read_ledgers(folder), base::DataError) << content;
  }
  EXPECT_THROW(read_ledgers(folder / "nothing"), base::DataError);
}

}  // namespace
}  // namespace ingot::comm
