#include "resilience/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace ingot::resilience {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Each text is a rank's steps: a letter for a collective, a bar before each step but the first.
std::vector<RankHistory> histories(const std::vector<std::string>& ranks, size_t kept = comm::HeartbeatBoard::kOperationsKept) {
  std::vector<RankHistory> all;
  for (const auto& text : ranks) {
    RankHistory history{.rank = static_cast<int>(all.size()), .role = 0, .operations = {}};
    int64_t step = 1, index = 0;
    for (const char letter : text) {
      if (letter == '|') ++step, index = 0;
      else history.operations.push_back({step, ++index, step, static_cast<uint64_t>(letter), std::string(1, letter)});
    }
    auto& operations = history.operations;
    if (operations.size() > kept) operations.erase(operations.begin(), operations.end() - static_cast<ptrdiff_t>(kept));
    all.push_back(history);
  }
  return all;
}

std::vector<int> astray(const std::vector<std::string>& ranks) {
  const auto found = find_divergence(histories(ranks));
  return found ? found->ranks : std::vector<int>();
}

TEST(Divergences, ranks_that_are_only_behind_are_on_the_same_path) {
  EXPECT_THAT(astray({"abc|abc", "abc|ab", "abc|abc|", "ab"}), ElementsAre());
  EXPECT_THAT(astray({"abc"}), ElementsAre());
  EXPECT_THAT(astray({"", "abc", ""}), ElementsAre());
}

TEST(Divergences, the_one_that_skips_adds_or_changes_something_is_named) {
  EXPECT_THAT(astray({"abc|abc", "abc|ac", "abc|abc", "abc|ab"}), ElementsAre(1));
  EXPECT_THAT(astray({"abc|abc", "abc|abc", "abc|abbc", "abc|abc"}), ElementsAre(2));
  EXPECT_THAT(astray({"abc|abd", "abc|abc", "abc|abc", "abc|abc"}), ElementsAre(0));
  // At the end of a step, where the next one has begun.
  EXPECT_THAT(astray({"abc|a", "abc|a", "ab|abc", "abc|a"}), ElementsAre(2));
  EXPECT_THAT(astray({"abc|a", "abc|a", "abcc", "abc|a"}), ElementsAre(2));
  // Where a pair is stuck and the others have gone on as far as they can: who skipped is told by what the others did.
  EXPECT_THAT(astray({"ab|bc", "ab|a", "ab|abc", "ab|abc"}), ElementsAre(0));
}

TEST(Divergences, of_two_nobody_can_say_which) {
  const auto found = find_divergence(histories({"abc|abc", "abc|ac"}));
  ASSERT_TRUE(found);
  EXPECT_THAT(found->ranks, ElementsAre(0, 1));
  EXPECT_THAT(found->description, HasSubstr("rank 0 began b, rank 1 began c as collective 2 of step 2"));
  EXPECT_THAT(astray({"ab", "ab", "ac", "ac"}), ElementsAre(0, 1, 2, 3));
}

TEST(Divergences, what_a_rank_no_longer_remembers_is_not_held_against_it) {
  EXPECT_FALSE(find_divergence(histories({"abcdefgh", "ab", "abcdef"}, 3)));
  EXPECT_FALSE(find_divergence(histories({"abcdefgh|a", "abcdefgh"}, 2)));
}

TEST(Divergences, ranks_of_other_roles_do_other_things) {
  auto all = histories({"abc", "xyz", "abc", "xyz"});
  for (auto& history : all) history.role = history.rank % 2;
  EXPECT_FALSE(find_divergence(all));
  EXPECT_TRUE(find_divergence(histories({"abc", "xyz", "abc", "xyz"})));
}

}  // namespace
}  // namespace ingot::resilience
