#include "base/counts.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace ingot::base {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const UsageError& refused) {
    return refused.what();
  }
  return "";
}

TEST(Counts, units_are_powers_of_1024_in_either_case) {
  EXPECT_EQ(count_from("--size", "8", "bytes"), 8);
  EXPECT_EQ(count_from("--size", "4K", "bytes"), 4096);
  EXPECT_EQ(count_from("--size", "64m", "bytes"), int64_t{64} << 20);
  EXPECT_EQ(count_from("--size", "2G", "bytes"), int64_t{2} << 30);
  EXPECT_EQ(count_from("-i", "0", "bytes", 0), 0);
  EXPECT_THAT(counts_from("--seq", {"1K", "512"}, "tokens"), ElementsAre(1024, 512));
}

TEST(Counts, what_is_none_is_refused_with_the_flag_and_what_to_write) {
  for (const char* text : {"", "x", "1.5", "4KK", "K", "-"})
    EXPECT_THAT(refusal([&] { count_from("--size", text, "bytes, such as 4K"); }),
                AllOf(HasSubstr("--size"), HasSubstr("bytes, such as 4K")))
        << text;
  EXPECT_THAT(refusal([] { count_from("--m", "0", "a number"); }), HasSubstr("nearest that is possible is 1"));
  EXPECT_THAT(refusal([] { count_from("--m", "9999T", "a number"); }), HasSubstr("281474976710656"));
}

TEST(Quantities, units_are_powers_of_1000_and_exponents_are_read) {
  EXPECT_EQ(quantity_from("--params", "", 1e14), 0);
  EXPECT_EQ(quantity_from("--params", "760M", 1e14), 760e6);
  EXPECT_EQ(quantity_from("--params", "8B", 1e14), 8e9);
  EXPECT_EQ(quantity_from("--params", "8G", 1e14), 8e9);
  EXPECT_EQ(quantity_from("--tokens", "1.5T", 1e16), 1.5e12);
  EXPECT_EQ(quantity_from("--flops", "1e21", 1e30), 1e21);
}

TEST(Quantities, what_is_none_or_too_much_is_refused) {
  for (const char* text : {"x", "B", "0", "-3", "nan", "inf", "1e15"})
    EXPECT_THAT(refusal([&] { quantity_from("--params", text, 1e14); }), AllOf(HasSubstr("--params"), HasSubstr("such as 760M"))) << text;
}

}  // namespace
}  // namespace ingot::base
