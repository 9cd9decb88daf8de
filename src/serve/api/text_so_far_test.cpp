#include "serve/api/text_so_far.h"

#include <gtest/gtest.h>

namespace ingot::serve {
namespace {

// Each id is a byte.
class Bytes : public data::Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::vector<int32_t> encode_with_special(std::string_view text) const override { return encode(text); }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += static_cast<char>(id);
    return text;
  }
  int32_t vocab_size() const override { return 256; }
  std::string piece(int32_t id) const override { return std::string(1, static_cast<char>(id)); }
  int32_t id_of(std::string_view) const override { return -1; }
};

struct Shown {
  std::string text;
  std::vector<std::string> pieces;
  bool is_stopped = false;
};

Shown shown(const std::string& text, std::vector<std::string> stops) {
  const Bytes tokenizer;
  TextSoFar so_far(tokenizer, std::move(stops));
  Shown result;
  for (const char c : text) result.pieces.push_back(so_far.push(static_cast<unsigned char>(c)));
  result.pieces.push_back(so_far.finish());
  for (const auto& piece : result.pieces) result.text += piece;
  result.is_stopped = so_far.is_stopped();
  return result;
}

TEST(TextSoFar, shows_all_without_stop_texts) {
  const auto all = shown("one two", {});
  EXPECT_EQ(all.text, "one two");
  EXPECT_FALSE(all.is_stopped);
  EXPECT_EQ(all.pieces[0], "o");
}

TEST(TextSoFar, ends_before_the_first_of_its_stop_texts) {
  for (const auto& stops : {std::vector<std::string>{"END"}, {"xyz", "END"}, {"ENDE", "END"}, {"D.", "END"}}) {
    const auto cut = shown("begin END. and more", stops);
    EXPECT_EQ(cut.text, "begin ");
    EXPECT_TRUE(cut.is_stopped);
  }
}

TEST(TextSoFar, holds_back_what_may_become_a_stop_text_and_no_more) {
  const auto all = shown("aab aaab", {"aaac"});
  EXPECT_EQ(all.text, "aab aaab");
  EXPECT_FALSE(all.is_stopped);
  EXPECT_EQ(all.pieces[0], "");
  EXPECT_EQ(all.pieces[1], "");
  EXPECT_EQ(all.pieces[2], "aab");
  EXPECT_EQ(shown("ab", {"abc"}).text, "ab") << "what is held back at the end";
  EXPECT_EQ(shown("aaaac!", {"aaac"}).text, "a");
}

TEST(TextSoFar, tokens_without_a_text_show_nothing) {
  const Bytes tokenizer;
  TextSoFar so_far(tokenizer, {});
  EXPECT_EQ(so_far.push(300), "");
}

}  // namespace
}  // namespace ingot::serve
