#include "data/chat/trim.h"

#include <ctime>

#include "base/random.h"
#include "data/test_support.h"
#include "data/tokenize/byte_tokenizer.h"

namespace ingot::data::chat {
namespace {

using Part = ChatTemplate::Part;
using Outcome = Trimming::Outcome;

// Two bytes a token, from the beginning of the text: tags and characters begin and end within tokens.
class PairTokenizer : public ByteTokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < text.size(); i += 2)
      ids.push_back(static_cast<unsigned char>(text[i]) | (i + 1 < text.size() ? 256 + (static_cast<unsigned char>(text[i + 1]) << 9) : 0));
    return ids;
  }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) {
      text += static_cast<char>(id & 255);
      if (id & 256) text += static_cast<char>(id >> 9);
    }
    return text;
  }
};

// From the end of the text: what stands behind a tag changes all tokens before it.
class PairsFromEndTokenizer : public PairTokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) const override {
    const size_t odd = text.size() % 2;
    auto ids = PairTokenizer::encode(text.substr(0, odd));
    const auto others = PairTokenizer::encode(text.substr(odd));
    ids.insert(ids.end(), others.begin(), others.end());
    return ids;
  }
};

std::vector<Part> turn(const std::string& question, const std::string& answer) {
  return {{"<user>" + question + "<end>\n<assistant>", false}, {answer + "<end>\n", true}};
}

std::vector<Part> turns(const std::vector<std::vector<Part>>& all) {
  std::vector<Part> parts;
  for (const auto& one : all) parts.insert(parts.end(), one.begin(), one.end());
  return parts;
}

struct Left {
  std::string text, learned;
  Trimming trimming;
};

Left trimmed(const std::vector<Part>& parts, int64_t most, const Tokenizer& tokenizer = ByteTokenizer(), const TrimOptions& tags = {}) {
  TrimOptions options = tags;
  options.most_tokens = most;
  Left left;
  const auto encoded = encode_trimmed(parts, tokenizer, options, left.trimming);
  left.text = tokenizer.decode(encoded.ids, true);
  size_t at = 0;
  for (const auto& run : encoded.runs) {
    if (run.is_learned) left.learned += tokenizer.decode(std::span(encoded.ids).subspan(at, run.tokens), true);
    at += run.tokens;
  }
  EXPECT_EQ(at, encoded.ids.size());
  EXPECT_EQ(left.trimming.kept_tokens, static_cast<int64_t>(encoded.ids.size()));
  return left;
}

std::string text_of(const std::vector<Part>& parts) {
  std::string text;
  for (const auto& part : parts) text += part.text;
  return text;
}

TEST(Trim, what_fits_stays_as_it_is) {
  const auto parts = turns({turn("1+1?", "<think>one, two</think>\n\n2"), turn("sure?", "<think>yes</think>\n\nYes.")});
  const auto size = static_cast<int64_t>(text_of(parts).size());
  for (const int64_t most : {size, size + 1, int64_t{0}}) {
    const auto left = trimmed(parts, most);
    EXPECT_EQ(left.text, text_of(parts));
    EXPECT_EQ(left.trimming.outcome, Outcome::fits);
  }
  EXPECT_EQ(trimmed(parts, size - 1).trimming.outcome, Outcome::trimmed);
}

TEST(Trim, the_last_thought_loses_its_end_right_before_the_answer) {
  const auto parts = turn("1+1?", "<think>one, two, three</think>\n\n2");
  const auto whole = static_cast<int64_t>(text_of(parts).size());
  const auto left = trimmed(parts, whole - 7);
  EXPECT_EQ(left.text, text_of(turn("1+1?", "<think>one, two</think>\n\n2")));
  EXPECT_EQ(left.learned, "<think>one, two</think>\n\n2<end>\n");
  EXPECT_EQ(left.trimming.tokens - left.trimming.kept_tokens, 7);
  EXPECT_EQ(trimmed(parts, whole - 15).text, text_of(turn("1+1?", "<think></think>\n\n2")));
  EXPECT_EQ(trimmed(parts, whole - 16).trimming.outcome, Outcome::left_out);
  EXPECT_EQ(trimmed(parts, whole - 16).text, "");
}

TEST(Trim, earlier_thoughts_go_whole_and_first) {
  const auto parts = turns({turn("1+1?", "<think>one, two</think>\n\n2"), turn("sure?", "<think>I counted.</think>\n\nYes.")});
  const auto whole = static_cast<int64_t>(text_of(parts).size());
  const auto left = trimmed(parts, whole - 1);
  EXPECT_EQ(left.text, text_of(turns({turn("1+1?", "2"), turn("sure?", "<think>I counted.</think>\n\nYes.")})));
  EXPECT_EQ(left.learned, "2<end>\n<think>I counted.</think>\n\nYes.<end>\n");
  EXPECT_EQ(left.trimming.removed_thoughts, 1);
  EXPECT_EQ(trimmed(parts, whole - 25 - 9).text, text_of(turns({turn("1+1?", "2"), turn("sure?", "<think>I</think>\n\nYes.")})));
}

TEST(Trim, conversations_that_are_too_long_without_thoughts_are_left_out) {
  const auto none = turn("why?", "Because it is a long answer without any thought.");
  EXPECT_EQ(trimmed(none, 40).trimming.outcome, Outcome::left_out);
  const auto question = turn("A prompt that has <think>no thoughts of the model</think> in it?", "<think>hm</think>No.");
  EXPECT_EQ(trimmed(question, 60).trimming.outcome, Outcome::left_out) << "prompts are not touched";
  // Not closed: there is no answer that would be kept.
  EXPECT_EQ(trimmed(turn("why?", "<think>on and on and on and on"), 40).trimming.outcome, Outcome::left_out);
  EXPECT_EQ(trimmed(turn("why?", "</think></think></think>" + std::string(90, 'x')), 40).trimming.outcome, Outcome::left_out);
}

TEST(Trim, a_thought_may_be_opened_by_the_prompt_and_tags_are_the_callers) {
  const auto opened = [](const std::string& thought) {
    return std::vector<Part>{{"<user>?<end><assistant><think>\n", false}, {thought + "</think>Yes.<end>", true}};
  };
  const auto parts = opened("that is so because of this");
  EXPECT_EQ(trimmed(parts, static_cast<int64_t>(text_of(parts).size()) - 16).text, text_of(opened("that is so")));
  const auto other = turn("?", "[THINK]abcdef[/THINK]Yes.");
  EXPECT_EQ(trimmed(other, static_cast<int64_t>(text_of(other).size()) - 3, ByteTokenizer(), {0, "[THINK]", "[/THINK]"}).text,
            text_of(turn("?", "[THINK]abc[/THINK]Yes.")));
}

TEST(Trim, no_character_is_cut_apart) {
  const auto parts = turn("?", "<think>a\U0001F600\u00e9\u4e2d</think>4");
  const auto whole = static_cast<int64_t>(text_of(parts).size());
  const std::vector<std::pair<int64_t, std::string>> expected = {
      {1, "a\U0001F600\u00e9"}, {3, "a\U0001F600\u00e9"}, {4, "a\U0001F600"}, {6, "a"}, {9, "a"}, {10, ""}};
  for (const auto& [too_many, kept] : expected)
    EXPECT_EQ(trimmed(parts, whole - too_many).text, text_of(turn("?", "<think>" + kept + "</think>4"))) << too_many;
}

// Regression: of the tokens that a thought changes in its tag one was left alone, however many these are.
TEST(Trim, a_tag_stays_whole_where_the_thought_changes_several_of_its_tokens) {
  const PairsFromEndTokenizer tokenizer;
  for (const char* question : {"?", "??"}) {
    const auto parts = turn(question, "<think>abcdefg</think>42");
    const auto whole = static_cast<int64_t>(tokenizer.encode(text_of(parts)).size());
    EXPECT_EQ(trimmed(parts, whole - 2, tokenizer).text, text_of(turn(question, "<think>abc</think>42")));
    EXPECT_EQ(trimmed(parts, whole - 3, tokenizer).text, text_of(turn(question, "<think>a</think>42")));
    EXPECT_EQ(trimmed(parts, whole - 4, tokenizer).trimming.outcome, Outcome::left_out);
  }
}

// Regression: the whole text was gone through again for each tag.
TEST(Trim, many_tags_take_no_longer_than_a_long_text) {
  constexpr int kTags = 200'000;
  const auto start = std::clock();
  std::string closed = "a", thoughts;
  for (int i = 0; i < kTags; ++i) closed += "</think>", thoughts += "b<think>c</think>\n";
  EXPECT_EQ(trimmed(turn("?", closed), 40).trimming.outcome, Outcome::left_out);
  std::string kept(kTags, 'b');  // in two steps: GCC 12 warns of what it makes of the sum
  kept += "<think></think>\n";
  const auto expected = text_of(turn("?", kept));
  const auto left = trimmed(turn("?", thoughts), static_cast<int64_t>(expected.size()));
  EXPECT_TRUE(left.text == expected) << left.text.size() << " bytes";
  EXPECT_EQ(left.trimming.removed_thoughts, kTags - 1);
  EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 10);
}

// Any texts and budgets: what comes out is what went in but for thoughts, of which the last keeps a beginning that is as long as it can be.
TEST(Trim, only_thoughts_are_lost_and_no_more_than_is_too_long) {
  const PairTokenizer pairs;
  const ByteTokenizer bytes;
  int64_t trims = 0, left_out = 0;
  for (uint64_t trial = 0; trial < 2000; ++trial) {
    uint64_t drawn = 0;
    const auto draw = [&](uint64_t bound) { return static_cast<size_t>(base::uniform_at(trial, drawn++) * static_cast<double>(bound)); };
    const auto words = [&](size_t count) {
      static const std::vector<std::string> kWords = {"a", "of ", "\u00e9t\u00e9 ", "\U0001F600", "<", "/think", "\n", "thus, "};
      std::string text;
      for (size_t i = 0; i < count; ++i) text += kWords[draw(kWords.size())];
      return text;
    };
    std::vector<std::vector<Part>> with, without;
    std::string last_thought;
    const size_t count = 1 + draw(3);
    for (size_t t = 0; t < count; ++t) {
      const auto question = words(draw(6)), thought = words(draw(20)), answer = words(1 + draw(5)) + ".";
      const bool is_last = t + 1 == count;
      with.push_back(turn(question, "<think>" + thought + "</think>\n\n." + answer));
      without.push_back(turn(question, (is_last ? "<think>\x01</think>\n\n." : ".") + answer));
      if (is_last) last_thought = thought;
    }
    const auto parts = turns(with);
    const Tokenizer& tokenizer = trial % 2 == 0 ? static_cast<const Tokenizer&>(bytes) : pairs;
    const auto most = static_cast<int64_t>(1 + draw(tokenizer.encode(text_of(parts)).size() + 10));
    const auto left = trimmed(parts, most, tokenizer);
    ASSERT_LE(left.trimming.kept_tokens, most);
    if (left.trimming.outcome == Outcome::fits) {
      ASSERT_EQ(left.text, text_of(parts));
      continue;
    }
    const auto frame = text_of(turns(without));
    const size_t hole = frame.find('\x01');
    const auto slack = static_cast<int64_t>(2 * count + 4);  // tokens that are partly of tags, and a character
    if (left.trimming.outcome == Outcome::left_out) {
      ++left_out;
      ASSERT_GT(static_cast<int64_t>(tokenizer.encode(frame).size()) + slack, most);
      continue;
    }
    ++trims;
    ASSERT_TRUE(left.text.starts_with(frame.substr(0, hole))) << left.text;
    ASSERT_TRUE(left.text.ends_with(frame.substr(hole + 1))) << left.text;
    const auto kept = left.text.substr(hole, left.text.size() - (frame.size() - 1));
    // A token of two bytes may be kept of the thought's end, for what it has of the tag.
    ASSERT_TRUE(last_thought.starts_with(kept) || (&tokenizer == &pairs && last_thought.starts_with(kept.substr(0, kept.size() - 1))))
        << kept << " of " << last_thought;
    if (kept != last_thought) {
      ASSERT_GE(left.trimming.kept_tokens + slack, most);
    }
  }
  EXPECT_GT(trims, 300);
  EXPECT_GT(left_out, 300);
}

}  // namespace
}  // namespace ingot::data::chat
