// Scanners against the patterns that they stand for, run on PCRE2.
#include "data/hugging_face/word_scanner.h"

#include <random>

#include "data/hugging_face/regex.h"
#include "data/test_support.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

class Scanner : public ::testing::TestWithParam<const char*> {};

std::string random_text(std::mt19937_64& random) {
  static const std::vector<std::string> parts = {" ",
                                                 "  ",
                                                 "\n",
                                                 "\r\n",
                                                 "\t",
                                                 "\xC2\xA0",
                                                 "\xE3\x80\x80",
                                                 "\xE2\x80\xA8",
                                                 "\xC2\x85",
                                                 "a",
                                                 "The",
                                                 "z",
                                                 "\xC3\xA9",
                                                 "\xE4\xB8\xAD",
                                                 "1",
                                                 "22",
                                                 "\xC2\xBD",
                                                 "\xD9\xA3",
                                                 "'s",
                                                 "'S",
                                                 "'",
                                                 "'re",
                                                 "'LL",
                                                 "'v",
                                                 "'\xC5\xBF",
                                                 "'l",
                                                 "!",
                                                 ".",
                                                 "_",
                                                 "/",
                                                 "-",
                                                 "\xCC\x81",
                                                 "\xE2\x80\x8D",
                                                 "\xF0\x9F\x98\x80",
                                                 "'d",
                                                 "'m"};
  std::string text;
  for (uint64_t i = 1 + random() % 12; i > 0; --i) {
    if (random() % 20 != 0) text += parts[random() % parts.size()];
    else append_utf8(text, static_cast<char32_t>(random() % 0xD800));
  }
  return text;
}

TEST_P(Scanner, words_are_those_of_the_pattern) {
  const Regex pattern(GetParam(), Dialect::rust);
  const WordScanner scanner = scanner_of(pattern);
  ASSERT_NE(scanner, nullptr);
  std::mt19937_64 random(1);
  for (int i = 0; i < 30000; ++i) {
    const std::string text = random_text(random);
    size_t at = 0;
    for (const auto& match : pattern.find_all(text)) {
      ASSERT_EQ(match.begin, at) << text;
      ASSERT_EQ(scanner(text, at), match.end) << "at byte " << at << " of '" << text << "'";
      at = match.end;
    }
    ASSERT_EQ(at, text.size());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Patterns, Scanner,
    ::testing::Values(
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
        R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)",
        R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
        R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"));

TEST(WordScanner, other_patterns_have_none) {
  EXPECT_EQ(scanner_of(Regex(R"(\p{L}+)")), nullptr);
  const auto cl100k =
      R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
  EXPECT_EQ(scanner_of(Regex(cl100k)), nullptr) << "in a tokenizer.json {1,3}+ takes any number of digits";
}

}  // namespace
}  // namespace ingot::data
