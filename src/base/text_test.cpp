#include "base/text.h"

#include <gtest/gtest.h>

#include "base/closest_name.h"

namespace ingot::base {
namespace {

TEST(NearestName, finds_a_typo_and_ignores_strangers) {
  EXPECT_EQ(nearest_name("tarin", {"train", "serve", "plan"}), "train");
  EXPECT_EQ(nearest_name("completely-else", {"train", "serve"}), "");
  EXPECT_EQ(nearest_name("train", {}), "");
}

TEST(ClosestName, is_found_however_far) {
  EXPECT_EQ(closest_name("tarin", {"plan", "train"}), "train");
  EXPECT_EQ(closest_name("completely-else", {"serve", "complete"}), "complete");
  EXPECT_EQ(closest_name("train", {}), "");
}

TEST(Format, gives_units_people_read) {
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(3LL << 30), "3.00 GiB");
  EXPECT_EQ(format_count(8840488784.0), "8.84 G");
  EXPECT_EQ(format_duration(65), "1 min 05 s");
  EXPECT_EQ(format_duration(7380), "2 h 03 min");
}

TEST(ParseInteger, takes_suffixes_and_refuses_rubbish) {
  EXPECT_EQ(parse_integer("12"), 12);
  EXPECT_EQ(parse_integer("1.5K"), 1500);
  EXPECT_EQ(parse_integer("4KiB"), 4096);
  EXPECT_FALSE(parse_integer("1.5"));
  EXPECT_FALSE(parse_integer("12x"));
  EXPECT_FALSE(parse_integer(""));
  EXPECT_FALSE(parse_integer("nan"));
}

}  // namespace
}  // namespace ingot::base
