// Cases worked out by hand from the definitions of BERT's tokenizer and its relatives; tests/python/tokenizers_test.py compares many texts
// with Hugging Face's library.
#include <nlohmann/json.hpp>

#include "data/base64.h"
#include "data/hugging_face/tokenizer.h"
#include "data/hugging_face/unicode_forms.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

using base::DataError;
using Json = nlohmann::json;

Json bert() {
  return Json::parse(R"({
    "added_tokens": [{"id": 0, "content": "[UNK]", "special": true}, {"id": 1, "content": "[CLS]", "special": true},
                     {"id": 2, "content": "[SEP]", "special": true}],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]},
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 8,
              "vocab": {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "un": 3, "##aff": 4, "##able": 5, "##a": 6, ",": 7, "it": 8, "'": 9, "s": 10,
                        "caf": 11, "##e": 12, "中": 13, "##s": 14, "n": 15, "##'": 16, "É": 17, "é": 18, "e": 19}}})");
}

HuggingFaceTokenizer made(const Json& json) { return HuggingFaceTokenizer(json.dump(), "", "small.json"); }

using Ids = std::vector<int32_t>;

TEST(WordPiece, words_are_cut_into_the_longest_tokens_that_fit) {
  const auto tokenizer = made(bert());
  EXPECT_EQ(tokenizer.encode("unaffable, It"), (Ids{0, 7, 8})) << "nine characters are more than eight";
  EXPECT_EQ(tokenizer.encode("unaffa, UNABLE\tita"), (Ids{3, 4, 6, 7, 3, 5, 8, 6}));
  EXPECT_EQ(tokenizer.encode("unaffx un"), (Ids{0, 3})) << "a word whose end is unknown is unknown as a whole";
  EXPECT_EQ(tokenizer.encode("it's"), (Ids{8, 9, 10})) << "punctuation stands alone";
  EXPECT_EQ(tokenizer.encode_with_special("it"), (Ids{1, 8, 2}));
  EXPECT_EQ(tokenizer.encode("[SEP] it"), (Ids{2, 8}));
  EXPECT_EQ(tokenizer.special().bos, 1);
  EXPECT_EQ(tokenizer.special().eos, 2);
  EXPECT_EQ(tokenizer.special().unk, 0);
}

TEST(WordPiece, what_is_unknown_needs_an_unknown_token) {
  auto json = bert();
  json["model"]["unk_token"] = "[NONE]";
  expect_error<DataError>([&] { made(json).encode("it xyz"); }, {"'xyz' is in no token", "[NONE]"});
}

TEST(WordPiece, files_without_a_type_are_known_by_their_fields) {
  auto json = bert();
  json["model"].erase("type");
  EXPECT_EQ(made(json).encode("unaffa"), (Ids{3, 4, 6}));
}

TEST(BertNormalizer, text_is_cleaned_and_ideographs_are_set_apart) {
  const auto tokenizer = made(bert());
  EXPECT_EQ(tokenizer.encode(std::string("u\0n\x01 i\xC2\xADt\r\nit", 13)), (Ids{3, 8, 8})) << "control and format characters go";
  EXPECT_EQ(tokenizer.encode("it\xC2\xA0it\xE3\x80\x80it"), (Ids{8, 8, 8}));
  EXPECT_EQ(tokenizer.encode("un中it中中"), (Ids{3, 13, 8, 13, 13}));
  auto json = bert();
  json["normalizer"]["handle_chinese_chars"] = json["normalizer"]["clean_text"] = false;
  EXPECT_EQ(made(json).encode("it\x01 un中"), (Ids{0, 0}));
}

TEST(BertNormalizer, accents_go_with_capitals_unless_it_is_said_otherwise) {
  try {
    to_unicode_form("\xC3\xA9", UnicodeForm::nfd);
  } catch (const DataError&) {
    GTEST_SKIP() << "built without utf8proc";
  }
  auto json = bert();
  EXPECT_EQ(made(json).encode("Café É"), (Ids{11, 12, 19}));
  json["normalizer"]["strip_accents"] = false;
  EXPECT_EQ(made(json).encode("Café É"), (Ids{0, 18}));
  json["normalizer"]["lowercase"] = false;
  EXPECT_EQ(made(json).encode("café É"), (Ids{0, 17}));
  json["normalizer"]["strip_accents"] = nullptr;
  EXPECT_EQ(made(json).encode("É"), (Ids{17})) << "null: as lowercase says";
  json["normalizer"]["strip_accents"] = true;
  EXPECT_EQ(made(json).encode("café"), (Ids{11, 12}));
}

TEST(WordPieceDecoder, pieces_are_joined_and_english_is_cleaned_up) {
  auto json = bert();
  const Ids ids = {8, 9, 10, 3, 4, 5, 7, 8};
  EXPECT_EQ(made(json).decode(ids), "it ' s unaffable, it") << "cleaned up token by token";
  json["decoder"]["cleanup"] = false;
  EXPECT_EQ(made(json).decode(ids), "it ' s unaffable , it");
  EXPECT_EQ(made(json).decode(Ids{4, 14, 1, 8}), "##affs it") << "the first token keeps its prefix";
}

TEST(WordLevel, words_are_tokens_or_unknown) {
  auto json = bert();
  json["model"] = Json::parse(R"({"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 3, "bc": 4}, "unk_token": "[UNK]"})");
  json["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
  EXPECT_EQ(made(json).encode("a bc ab, BC"), (Ids{3, 4, 0, 4}));
  json["pre_tokenizer"] = {{"type", "FixedLength"}, {"length", 2}};
  EXPECT_EQ(made(json).encode("bcbca"), (Ids{4, 4, 3}));
}

Json letters() {
  return Json::parse(R"({"added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "a": 1, "b</w>": 2, "<pad>": 3, "|": 4, "'s": 5}}})");
}

TEST(BpeDecoder, ends_of_words_become_spaces) {
  auto json = letters();
  json["decoder"] = {{"type", "BPEDecoder"}, {"suffix", "</w>"}};
  EXPECT_EQ(made(json).decode(Ids{1, 2, 1, 2}), "ab ab");
}

TEST(CtcDecoder, repetitions_and_pads_go) {
  auto json = letters();
  json["decoder"] = {{"type", "CTC"}, {"pad_token", "<pad>"}, {"word_delimiter_token", "|"}, {"cleanup", true}};
  EXPECT_EQ(made(json).decode(Ids{1, 1, 3, 1, 4, 4, 3, 5, 3, 3}), "aa 's");
  json["decoder"]["cleanup"] = false;
  EXPECT_EQ(made(json).decode(Ids{1, 4, 3, 5}), "a|'s");
}

TEST(Nmt, controls_go_and_separators_become_spaces) {
  auto json = letters();
  json["normalizer"] = {{"type", "Nmt"}};
  EXPECT_EQ(made(json).encode("\x01"
                              "a\xE2\x80\x8D"
                              "a\xEF\xBB\xBF"
                              "a\x7F"),
            (Ids{1, 1, 1}));
}

TEST(Base64, only_what_an_encoder_writes_is_read) {
  EXPECT_EQ(bytes_of_base64("Zm9vYg=="), "foob");
  EXPECT_EQ(bytes_of_base64("Zm9vYmE="), "fooba");
  EXPECT_EQ(bytes_of_base64("Zm9v"), "foo");
  EXPECT_EQ(bytes_of_base64("+/8="), "\xFB\xFF");
  EXPECT_EQ(bytes_of_base64(""), "");
  for (const char* wrong : {"Zg", "Zg=", "Z===", "Zg==Zg==", "Zm 9", "Zh==", "Zm9=", "Zm9\xC3\xA9"})
    EXPECT_FALSE(bytes_of_base64(wrong)) << wrong;
}

}  // namespace
}  // namespace ingot::data
