#include "serve/engine/drafts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Ids = std::vector<int64_t>;

TEST(Lookup, finds_what_followed_the_newest_tokens) {
  EXPECT_THAT(Lookup().drafts(Ids{1, 2, 3, 4, 5, 2, 3}, 3), ElementsAre(4, 5, 2));
  EXPECT_THAT(Lookup().drafts(Ids{1, 2, 3, 4, 9, 2, 3, 7, 1, 2, 3}, 2), ElementsAre(4, 9)) << "three tokens before two";
  EXPECT_THAT(Lookup().drafts(Ids{2, 3, 4, 2, 3, 5, 2, 3}, 1), ElementsAre(5)) << "the last time";
  EXPECT_THAT(Lookup().drafts(Ids{1, 2, 3, 4}, 3), IsEmpty());
  EXPECT_THAT(Lookup().drafts(Ids{1}, 3), IsEmpty());
  EXPECT_THAT(Lookup().drafts(Ids{}, 3), IsEmpty());
  EXPECT_THAT(Lookup().drafts(Ids{1, 2, 1, 2, 1, 2}, 0), IsEmpty());
}

TEST(Lookup, goes_on_with_what_repeats_itself) {
  EXPECT_THAT(Lookup().drafts(Ids{5, 1, 2, 1, 2}, 5), ElementsAre(1, 2, 1, 2, 1));
  EXPECT_THAT(Lookup().drafts(Ids{7, 7, 7}, 4), ElementsAre(7, 7, 7, 7));
}

TEST(Lookup, says_the_same_of_a_text_that_grew) {
  Lookup growing;
  Ids ids;
  for (int64_t i = 0; i < 300; ++i) {
    ids.push_back(i * i % 7 + (i / 50 == 3));
    EXPECT_EQ(growing.drafts(ids, 4), Lookup().drafts(ids, 4)) << i;
  }
}

TEST(DraftLength, goes_by_what_was_taken) {
  DraftLength length(10);
  EXPECT_EQ(length.next(), 4);
  length.learn(4, 4);
  EXPECT_EQ(length.next(), 8);
  length.learn(8, 8);
  EXPECT_EQ(length.next(), 10);
  length.learn(10, 2);
  EXPECT_EQ(length.next(), 3);
  length.learn(3, 0);
  EXPECT_EQ(length.next(), 0) << "a pass of rest";
  EXPECT_EQ(length.next(), 1);
  length.learn(1, 0);
  for (int rest = 0; rest < 3; ++rest) EXPECT_EQ(length.next(), 0);
  EXPECT_EQ(length.next(), 1);
  length.learn(1, 1);
  EXPECT_EQ(length.next(), 2);
  EXPECT_EQ(DraftLength(2).next(), 2);
}

}  // namespace
}  // namespace ingot::serve
