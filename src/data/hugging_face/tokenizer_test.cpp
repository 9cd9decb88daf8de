#include "data/hugging_face/tokenizer.h"

#include <nlohmann/json.hpp>

#include "data/hugging_face/regex.h"
#include "data/hugging_face/unicode_forms.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

using base::DataError;

const fs::path kFixtures = "src/data/testdata";

bool has_unicode_forms() {
  try {
    to_unicode_form("\xC3\xA9", UnicodeForm::nfc);
    return true;
  } catch (const DataError&) {
    return false;
  }
}

// Recorded from Hugging Face's tokenizers by tests/oracles/make_tokenizer_fixtures.py.
class RecordedTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(RecordedTokenizer, ids_and_texts_are_hugging_faces) {
  const auto fixture = nlohmann::json::parse(content_of(kFixtures / (std::string("tokenizer_") + GetParam() + ".json")));
  const HuggingFaceTokenizer tokenizer(fixture["tokenizer"].dump(), "", GetParam());
  const bool ascii_only = !has_unicode_forms();
  for (const auto& entry : fixture["cases"]) {
    const auto text = entry["text"].get<std::string>();
    const auto ids = entry["ids"].get<std::vector<int32_t>>();
    try {
      EXPECT_EQ(tokenizer.encode(text), ids) << entry["text"];
      EXPECT_EQ(tokenizer.encode_with_special(text), entry["special"].get<std::vector<int32_t>>()) << entry["text"];
    } catch (const DataError&) {
      if (!ascii_only) throw;
    }
    EXPECT_EQ(tokenizer.decode(ids), entry["decoded"].get<std::string>()) << entry["text"];
  }
}

// Those with a decoder: without one there are spaces between tokens and no text to stream.
class StreamedTokenizer : public RecordedTokenizer {};

// Byte tokens side by side decode all or nothing: a context that began inside a character once spoiled all that followed.
TEST_P(StreamedTokenizer, streamed_ids_give_the_text_of_all_of_them) {
  const auto fixture = nlohmann::json::parse(content_of(kFixtures / (std::string("tokenizer_") + GetParam() + ".json")));
  ASSERT_FALSE(fixture["tokenizer"]["decoder"].is_null());
  const HuggingFaceTokenizer tokenizer(fixture["tokenizer"].dump(), "", GetParam());
  for (const auto& entry : fixture["cases"]) {
    StreamDecoder decoder(tokenizer);
    std::string shown;
    for (const int32_t id : entry["ids"].get<std::vector<int32_t>>()) shown += decoder.push(id);
    EXPECT_EQ(shown + decoder.finish(), entry["decoded"].get<std::string>()) << entry["text"];
  }
}

INSTANTIATE_TEST_SUITE_P(Families, StreamedTokenizer,
                         ::testing::Values("gpt2", "gpt2_prefix_space", "llama3", "qwen", "gemma", "llama2", "unigram_bytes",
                                           "unigram_unknown", "whole_text_unigram"),
                         [](const auto& info) { return std::string(info.param); });

INSTANTIATE_TEST_SUITE_P(Families, RecordedTokenizer,
                         ::testing::Values("gpt2", "gpt2_prefix_space", "llama3", "qwen", "gemma", "llama2", "unigram_bytes",
                                           "unigram_unknown", "whole_text_unigram", "words", "affixes", "behaviours"),
                         [](const auto& info) { return std::string(info.param); });

// A tokenizer whose parts a test can change.
nlohmann::json small_tokenizer() {
  return nlohmann::json::parse(
      R"({"added_tokens": [{"id": 5, "content": "<s>", "special": true}, {"id": 6, "content": "</s>", "special": true}],
    "normalizer": null, "pre_tokenizer": null, "decoder": {"type": "Fuse"}, "post_processor": null,
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3, "?": 4}, "merges": ["a b"], "unk_token": "?"}})");
}

HuggingFaceTokenizer made(const nlohmann::json& json, const std::string& config = "") {
  return HuggingFaceTokenizer(json.dump(), config, "small.json");
}

TEST(HuggingFaceTokenizer, special_tokens_come_from_the_configuration_and_else_from_their_names) {
  const auto plain = made(small_tokenizer());
  EXPECT_EQ(plain.special().bos, 5);
  EXPECT_EQ(plain.special().eos, 6);
  EXPECT_EQ(plain.special().pad, -1);
  EXPECT_EQ(plain.special().unk, 4);
  const auto named = made(small_tokenizer(), R"({"bos_token": null, "eos_token": {"content": "b"}, "pad_token": "a"})");
  EXPECT_EQ(named.special().bos, -1);
  EXPECT_EQ(named.special().eos, 1);
  EXPECT_EQ(named.special().pad, 0);
  EXPECT_EQ(named.vocab_size(), 7);
  EXPECT_EQ(named.piece(6), "</s>");
  EXPECT_EQ(named.decode(std::vector<int32_t>{5, 2, 6}), "ab");
  EXPECT_EQ(named.decode(std::vector<int32_t>{5, 2, 6}, /*keep_special=*/true), "<s>ab</s>");
  expect_error<DataError>([&] { named.decode(std::vector<int32_t>{7}); }, {"no token 7", "vocabulary of 7"});
}

TEST(HuggingFaceTokenizer, components_that_are_not_supported_are_named) {
  const auto refused = [](const std::vector<std::string>& path, const std::string& value, const std::string& word) {
    auto json = small_tokenizer();
    auto* at = &json;
    for (const auto& name : path) at = &(*at)[name];
    *at = nlohmann::json::parse(value);
    expect_error<DataError>([&] { made(json); }, {"small.json", word});
  };
  refused({"normalizer"}, R"({"type": "Odd"})", "normalizer 'Odd'");
  refused({"normalizer"}, R"({"type": "Precompiled", "precompiled_charsmap": "AAA"})", "not base64");
  refused({"normalizer"}, R"({"type": "Precompiled", "precompiled_charsmap": "AAEAAAAA"})", "says that its trie has 256");
  refused({"pre_tokenizer"}, R"({"type": "UnicodeScripts"})", "pre-tokenizer 'UnicodeScripts'");
  refused({"pre_tokenizer"}, R"({"type": "FixedLength", "length": 0})", "length of 0");
  refused({"decoder"}, R"({"type": "Odd"})", "decoder 'Odd'");
  refused({"post_processor"}, R"({"type": "Odd"})", "post-processor 'Odd'");
  refused({"model"}, R"({"type": "Odd", "vocab": {}})", "model 'Odd'");
  refused({"model"}, R"({"type": "WordPiece", "vocab": {"a": -1}, "unk_token": "?"})", "'a' has the id -1");
  refused({"model", "dropout"}, "0.1", "dropout");
  refused({"model", "merges"}, R"(["a x"])", "merge 0 ('a' 'x')");
  refused({"model", "vocab"}, R"({"a": -1})", "'a' has the id -1");
  refused({"model", "vocab"}, R"({"a": 4000000000})", "'a' has the id 4000000000");
  refused({"pre_tokenizer"}, R"({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"})", "pattern '('");
  refused({"pre_tokenizer"}, R"({"type": "Split", "pattern": {"Regex": "[a&&b]"}, "behavior": "Isolated"})", "&&");
  refused({"pre_tokenizer"}, R"({"type": "Split", "pattern": {"String": " "}, "behavior": "Shuffled"})", "Shuffled");
  expect_error<DataError>([] { HuggingFaceTokenizer("{\"model\": 4", "", "cut.json"); }, {"cut.json", "parse error"});
  expect_error<DataError>([] { HuggingFaceTokenizer("[]", "", "list.json"); }, {"list.json"});
  std::string deep = "null";
  for (int i = 0; i < 1000; ++i) deep = R"({"type": "Sequence", "normalizers": [)" + deep + "]}";
  refused({"normalizer"}, deep, "nested more than 16 deep");
}

TEST(HuggingFaceTokenizer, hostile_patterns_end_with_an_error_instead_of_hanging) {
  auto json = small_tokenizer();
  json["pre_tokenizer"] = nlohmann::json::parse(R"({"type": "Split", "pattern": {"Regex": "(a*)*b|(a|a)*c"}, "behavior": "Isolated"})");
  const auto tokenizer = made(json);
  expect_error<DataError>([&] { tokenizer.encode(std::string(4000, 'a')); }, {"gives up", "limit"});
}

// Marks in every order, decomposed and composed, against one mark after another by definition: stable by class, in runs of any length.
TEST(UnicodeForms, long_runs_of_marks_are_put_in_order_as_short_ones_are) {
  const std::string above = "\u0301", below = "\u0316", both = "\u0344", tibetan = "\u0F73", within = "\u0334";
  try {
    to_unicode_form(above, UnicodeForm::nfd);
  } catch (const DataError&) {
    GTEST_SKIP() << "this build has no utf8proc";
  }
  const auto times = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  for (const int count : {3, 40, 20'000}) {
    EXPECT_EQ(to_unicode_form("a" + times(above, count) + times(below, count) + times(within, count), UnicodeForm::nfd),
              "a" + times(within, count) + times(below, count) + times(above, count));
    EXPECT_EQ(to_unicode_form("a" + times(above, count) + times(below, count), UnicodeForm::nfc),
              "\u00e1" + times(below, count) + times(above, count - 1));
    EXPECT_EQ(to_unicode_form("b" + times(both + below, count), UnicodeForm::nfd),
              "b" + times(below, count) + times("\u0308\u0301", count));
    EXPECT_EQ(to_unicode_form("\u0F40" + times(tibetan, count), UnicodeForm::nfd),
              "\u0F40" + times("\u0F71", count) + times("\u0F72", count));
  }
}

TEST(OnigurumaPatterns, clusters_of_many_flags_are_pairs) {
  std::string flags;
  for (int i = 0; i < 100'001; ++i) flags += "\U0001F1E6";
  const auto clusters = Regex::grapheme_clusters().find_all("x" + flags + "e\u0301");
  ASSERT_EQ(clusters.size(), 1u + 50'001 + 1);
  EXPECT_EQ(clusters[1].begin, 1u);
  EXPECT_EQ(clusters[1].end, 9u);
  EXPECT_EQ(clusters[50'001].end - clusters[50'001].begin, 4u) << "the last one is alone";
  EXPECT_EQ(clusters.back().end, 1 + flags.size() + 3);
}

TEST(HuggingFaceTokenizer, normalisers_that_let_text_explode_are_stopped) {
  auto json = small_tokenizer();
  auto doubling = nlohmann::json::parse(R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaa"})");
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", nlohmann::json::array()}};
  for (int i = 0; i < 50; ++i) json["normalizer"]["normalizers"].push_back(doubling);
  expect_error<DataError>([&] { made(json).encode("aaa"); }, {"normaliser"});
}

TEST(HuggingFaceTokenizer, folder_is_loaded_with_its_configuration) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", small_tokenizer().dump());
  folder.write("tokenizer_config.json", R"({"eos_token": "b"})");
  EXPECT_EQ(load_tokenizer(folder.path())->special().eos, 1);
  EXPECT_EQ(load_tokenizer(folder / "tokenizer.json")->special().eos, 1);
  expect_error<DataError>([&] { load_tokenizer(folder / "none"); }, {"none does not exist"});
  fs::remove(folder / "tokenizer.json");
  expect_error<DataError>([&] { load_tokenizer(folder.path()); }, {"no tokenizer.json, tokenizer.model or .tiktoken"});
}

TEST(OnigurumaPatterns, escapes_with_another_meaning_are_translated) {
  EXPECT_EQ(to_pcre2(R"(\s[^\S\d]\h[\h])"), R"(\p{White_Space}[^\P{White_Space}\p{Nd}][0-9a-fA-F][0-9a-fA-F])");
  EXPECT_EQ(to_pcre2(R"([]\]a[:alpha:]]\u00e9\\s)"), R"([]\]a[:alpha:]]\x{00e9}\\s)");
  EXPECT_THROW(to_pcre2(R"([a[bc]])"), DataError);
  EXPECT_THROW(to_pcre2(R"(\R)"), DataError);
  EXPECT_THROW(to_pcre2("a\\"), DataError);
  EXPECT_EQ(to_pcre2(R"(a{1,3}+b{2}[{]+)"), R"(a+b{2}[{]+)") << "to Ruby a plus behind an interval is a second quantifier";
  EXPECT_EQ(to_pcre2(R"(a{1,3}+\w)", Dialect::rust), R"(a{1,3}+[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])");
  EXPECT_THROW(to_pcre2("a{2,3}+"), DataError);
  EXPECT_EQ(to_pcre2(R"([\p{L}\]&&[^\d\]]]+[&])"), R"((?:(?![\p{Nd}\]])[\p{L}\]])+[&])");
  for (const char* other : {"[^a&&[^b]]", "[a&&[b]]", "[a&&[^b]c]", "[a&&[^b&&[^c]]]", "[a&&[^"})
    EXPECT_THROW(to_pcre2(other), DataError) << other;
}

// PCRE2 took \p{Han} for all that is used with Han: punctuation stuck to Chinese words.
TEST(OnigurumaPatterns, names_of_scripts_are_the_scripts_alone) {
  EXPECT_EQ(Regex(R"(\p{Han}+)").find_all("今。").at(0).end, 3);
  EXPECT_EQ(Regex(R"(\p{^Han})").find_all("今。").at(0).begin, 3);
  EXPECT_EQ(Regex(R"([^\P{Hiragana}]+)", Dialect::rust).find_all("かー").at(0).end, 3);
  EXPECT_EQ(to_pcre2(R"(\p{L}\p{Alphabetic}\pL\P{Lu})"), R"(\p{L}\p{Alphabetic}\pL\P{Lu})");
}

TEST(OnigurumaPatterns, differences_of_classes_leave_out_what_they_say) {
  const std::string text = "狗。今a天b";
  std::vector<std::string> found;
  for (const auto& match :
       Regex(R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lo}&&[^\p{Han}]]*[\p{Ll}\p{Lo}&&[^\p{Han}]]+| ?[^\s\p{L}\p{N}]+)", Dialect::rust)
           .find_all(text))
    found.push_back(text.substr(match.begin, match.end - match.begin));
  EXPECT_EQ(found, (std::vector<std::string>{"狗", "。", "今", "a", "天", "b"}));
}

}  // namespace
}  // namespace ingot::data
