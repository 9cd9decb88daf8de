#include "data/train_tokenizer.h"

#include "base/random.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/test_support.h"
#include "data/words.h"

namespace ingot::data {
namespace {

using base::DataError;
using base::UsageError;

// Text with enough different words for a vocabulary, the same on every machine.
std::string sample_text() {
  static const char* kSyllables[] = {"ba",  "ri",  "mou",  "tain", "walk", "ing", "hap", "py",  "un",  "king",
                                     "dom", "ser", "vant", "ev",   "en",   "ly",  "be",  "gin", "cre", "ate"};
  std::string text;
  for (uint64_t line = 0; line < 1500; ++line) {
    for (uint64_t word = 0; word < 9; ++word) {
      // Squared uniforms make some words frequent, as in a language.
      const double u = base::uniform_at(1, line * 9 + word);
      const auto kind = static_cast<uint64_t>(u * u * 400);
      for (uint64_t s = 0; s <= kind % 3; ++s) text += kSyllables[base::philox(2, kind, s)[0] % 20];
      text += word == 8 ? ".\n" : " ";
    }
  }
  return text + "Caf\xC3\xA9 na\xC3\xAFve 12345\n";
}

struct TrainTokenizer : ::testing::Test {
  TemporaryFolder folder;
  TrainTokenizerOptions options;
  void SetUp() override {
    options.inputs = {folder.write("text.txt", sample_text())};
    options.output = folder / "t.model";
    options.vocab_size = 420;
  }
};

TEST_F(TrainTokenizer, both_algorithms_are_lossless_and_have_the_ids_that_models_expect) {
  for (const char* algorithm : {"unigram", "bpe"}) {
    options.algorithm = algorithm;
    const auto result = train_tokenizer(options);
    EXPECT_EQ(result.sentences_read, 1501);
    const auto tokenizer = load_tokenizer(options.output);
    EXPECT_EQ(tokenizer->vocab_size(), 420);
    EXPECT_EQ(tokenizer->special().pad, 0);
    EXPECT_EQ(tokenizer->special().eos, 1);
    EXPECT_EQ(tokenizer->special().bos, 2);
    EXPECT_EQ(tokenizer->special().unk, 3);
    EXPECT_EQ(tokenizer->piece(4), "<0x00>");
    for (const std::string text : {"walking happily", " two  spaces ", "\n\n\ttabs\r\n",
                                   "\xF0\x9F\x98\x80 \xE4\xB8\xAD\xE6\x96\x87 caf\xC3\xA9", "", " ", "<0x41></s><bos>", "12345"}) {
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << algorithm;
    }
    EXPECT_EQ(tokenizer->encode("7041").size(), 4u) << "digits are pieces of their own";
    EXPECT_LT(tokenizer->encode(sample_text().substr(0, 1000)).size(), 500u) << "syllables were learnt";
    EXPECT_EQ(tokenizer->id_of("<eos>"), 1);
    EXPECT_EQ(tokenizer->id_of("no such piece"), -1);
    EXPECT_THROW(tokenizer->decode(std::vector<int32_t>{420}), DataError);
  }
}

TEST_F(TrainTokenizer, same_text_gives_the_same_bytes_and_a_sample_depends_on_the_seed) {
  train_tokenizer(options);
  const std::string first = content_of(options.output);
  train_tokenizer(options);
  EXPECT_TRUE(content_of(options.output) == first);
  options.max_sentences = 300;
  options.vocab_size = 380;
  EXPECT_EQ(train_tokenizer(options).sentences_used, 300);
  const std::string sampled = content_of(options.output);
  options.seed = 1;
  train_tokenizer(options);
  EXPECT_FALSE(content_of(options.output) == sampled);
  options.max_sentences = 1'000'000;
  options.max_bytes = 20'000;
  const auto result = train_tokenizer(options);
  EXPECT_LE(result.bytes_used, 20'000);
  EXPECT_GT(result.bytes_used, 19'000);
}

// Words alone give the ids of the whole: the library is asked for whole lines as the reference.
TEST_F(TrainTokenizer, encoding_by_words_equals_the_library_on_whole_texts) {
  for (const char* algorithm : {"unigram", "bpe"}) {
    options.algorithm = algorithm;
    options.user_symbols = {"<|user|>"};
    train_tokenizer(options);
    const SentencePieceTokenizer tokenizer(options.output);
    std::string crossing = content_of(options.output);
    auto model = SentencePieceModel::parse(crossing, "copy");
    model.pieces.push_back({"zz qq", -100, PieceType::normal});  // crosses a border: this one is encoded whole
    const SentencePieceTokenizer whole(model.serialize(), "whole");
    EXPECT_EQ(tokenizer.encode("a<|user|>b").at(1), tokenizer.id_of("<|user|>"));
    const std::vector<std::string> texts = {sample_text().substr(0, 3000), " a  b\xE2\x96\x81 c\n\n d<|user|>e <0x41> \xF0\x9F\x98\x80",
                                            std::string(300, ' ') + "x"};
    for (const auto& text : texts) EXPECT_EQ(tokenizer.encode(text), whole.encode(text)) << algorithm;
  }
}

TEST_F(TrainTokenizer, impossible_wishes_are_refused_with_the_numbers) {
  options.vocab_size = 100;
  expect_error<UsageError>([&] { train_tokenizer(options); }, {"100", "from 355"});
  options.vocab_size = 100'000;
  expect_error<DataError>([&] { train_tokenizer(options); }, {"100000 pieces", "text.txt", "too high"});
  options.algorithm = "wordpiece";
  expect_error<UsageError>([&] { train_tokenizer(options); }, {"wordpiece", "unigram, bpe or byte-bpe"});
  options.algorithm = "bpe";
  options.user_symbols = {"x", "x"};
  options.vocab_size = 400;
  expect_error<UsageError>([&] { train_tokenizer(options); }, {"'x'", "twice"});
  options.user_symbols = {"<bos>"};
  expect_error<UsageError>([&] { train_tokenizer(options); }, {"<bos>"});
  options.user_symbols.clear();
  options.inputs = {folder.write("empty.txt", "\n\n")};
  expect_error<DataError>([&] { train_tokenizer(options); }, {"empty.txt", "no text"});
  EXPECT_FALSE(fs::exists(options.output));
}

TEST_F(TrainTokenizer, streamed_ids_show_characters_only_when_whole) {
  train_tokenizer(options);
  const auto tokenizer = load_tokenizer(options.output);
  const std::string text = "walking \xF0\x9F\x98\x80\xE4\xB8\xAD happily\n\xC3\xA9";
  StreamDecoder decoder(*tokenizer);
  std::string shown;
  for (const int32_t id : tokenizer->encode(text)) {
    const std::string part = decoder.push(id);
    EXPECT_EQ(part.find("\xEF\xBF\xBD"), std::string::npos);
    shown += part;
  }
  EXPECT_EQ(shown + decoder.finish(), text);
  // A sequence that never becomes a character is given up, not swallowed.
  StreamDecoder broken(*tokenizer);
  const int32_t lead = tokenizer->id_of("<0xF0>"), letter = tokenizer->id_of("w");
  EXPECT_EQ(broken.push(letter), "w");
  EXPECT_EQ(broken.push(lead), "");
  EXPECT_EQ(broken.push(letter), "\xEF\xBF\xBDw");
  EXPECT_EQ(broken.finish(), "");
}

TEST(Words, borders_lie_before_spaces_and_around_newlines) {
  std::vector<std::string> words;
  for_each_word("a  bc\n\n d\xE2\x96\x81 e \n", [&](std::string_view word) { words.emplace_back(word); });
  EXPECT_EQ(words, (std::vector<std::string>{"a", "  bc", "\n", "\n", " d", "\xE2\x96\x81 e", " ", "\n"}));
  EXPECT_FALSE(crosses_word_border("\xE2\x96\x81\xE2\x96\x81the"));
  EXPECT_TRUE(crosses_word_border("a\xE2\x96\x81"));
  EXPECT_TRUE(crosses_word_border("\n\n"));
}

}  // namespace
}  // namespace ingot::data
