#include "data/export_tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/random.h"
#include "data/hugging_face/tokenizer.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

// Two models of train_tokenizer and the ids that transformers' AutoTokenizer gave for the folders exported from them
// (tests/oracles/make_export_fixtures.py).
struct ExportTokenizer : ::testing::TestWithParam<const char*> {
  TemporaryFolder folder;
  std::string name() const { return std::string("src/data/testdata/export_") + GetParam(); }
};

TEST_P(ExportTokenizer, folder_gives_the_ids_that_transformers_recorded) {
  const auto original = load_tokenizer(name() + ".model");
  const auto result = export_tokenizer(*original, folder.path());
  EXPECT_TRUE(result.tokenizer_json) << result.why_not;
  const auto exported = load_tokenizer(folder.path());
  ASSERT_NE(dynamic_cast<const HuggingFaceTokenizer*>(exported.get()), nullptr);
  const auto recorded = nlohmann::json::parse(content_of(name() + ".json"));
  for (const auto& entry : recorded) {
    const auto text = entry["text"].get<std::string>();
    const auto ids = entry["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(original->encode(text), ids) << entry["text"];
    EXPECT_EQ(exported->encode(text), ids) << entry["text"];
    EXPECT_EQ(exported->encode_with_special(text), ids);
    EXPECT_EQ(exported->decode(ids), entry["decoded"].get<std::string>());
    EXPECT_EQ(original->decode(ids), entry["decoded"].get<std::string>());
  }
}

TEST_P(ExportTokenizer, random_texts_get_the_librarys_ids) {
  const auto original = load_tokenizer(name() + ".model");
  export_tokenizer(*original, folder.path());
  const auto exported = load_tokenizer(folder.path());
  static const std::vector<std::string> kParts = {
      "the", " the",   "a", "aa", " ",  "  ", "\n", "\n\n\n",   "\xE2\x96\x81",     "king", "Kin",
      "dom", "<0x41>", "<", "7",  "42", ".",  ",;", "\xC3\xA9", "\xF0\x9F\x98\x80", "\t"};
  for (uint64_t trial = 0; trial < 3000; ++trial) {
    std::string text;
    for (uint64_t i = 0; i < 1 + trial % 20; ++i) text += kParts[base::philox(trial, i)[0] % kParts.size()];
    ASSERT_EQ(exported->encode(text), original->encode(text)) << "'" << text << "'";
  }
}

TEST_P(ExportTokenizer, special_tokens_and_model_go_along) {
  const auto original = load_tokenizer(name() + ".model");
  export_tokenizer(*original, folder.path());
  EXPECT_TRUE(content_of(folder / "tokenizer.model") == content_of(name() + ".model"));
  const auto config = nlohmann::json::parse(content_of(folder / "tokenizer_config.json"));
  EXPECT_EQ(config["eos_token"], "<eos>");
  EXPECT_EQ(config["add_bos_token"], false);
  EXPECT_EQ(nlohmann::json::parse(content_of(folder / "special_tokens_map.json"))["pad_token"], "<pad>");
  const auto exported = load_tokenizer(folder.path());
  EXPECT_EQ(exported->special().bos, 2);
  EXPECT_EQ(exported->special().eos, 1);
  EXPECT_EQ(exported->special().pad, 0);
  EXPECT_EQ(exported->special().unk, 3);
  EXPECT_EQ(exported->vocab_size(), original->vocab_size());
  // A folder that is exported again is copied.
  const TemporaryFolder second;
  EXPECT_TRUE(export_tokenizer(*exported, second.path()).tokenizer_json);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model"})
    EXPECT_EQ(content_of(second / file), content_of(folder / file));
  EXPECT_TRUE(export_tokenizer(*exported, folder.path()).tokenizer_json) << "into the folder it came from";
}

INSTANTIATE_TEST_SUITE_P(Algorithms, ExportTokenizer, ::testing::Values("unigram", "bpe"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ExportTokenizer, model_that_normalises_text_is_exported_without_tokenizer_json) {
  const TemporaryFolder folder;
  auto model = SentencePieceModel::parse(content_of("src/data/testdata/export_bpe.model"), "bpe");
  model.remove_extra_whitespaces = true;
  folder.write("t.model", model.serialize());
  const auto result = export_tokenizer(SentencePieceTokenizer(folder / "t.model"), folder.path());
  EXPECT_FALSE(result.tokenizer_json);
  EXPECT_THAT(result.why_not, ::testing::HasSubstr("removes extra spaces"));
  EXPECT_FALSE(fs::exists(folder / "tokenizer.json"));
  EXPECT_TRUE(fs::exists(folder / "tokenizer.model"));
  EXPECT_TRUE(fs::exists(folder / "tokenizer_config.json"));
}

TEST(ExportTokenizer, dummy_prefix_becomes_a_normaliser) {
  const TemporaryFolder folder;
  auto model = SentencePieceModel::parse(content_of("src/data/testdata/export_unigram.model"), "unigram");
  model.add_dummy_prefix = true;
  folder.write("t.model", model.serialize());
  const SentencePieceTokenizer original(folder / "t.model");
  ASSERT_TRUE(export_tokenizer(original, folder.path()).tokenizer_json);
  const auto exported = load_tokenizer(folder.path());
  for (const std::string text : {"the king", " the king", "", "\nthe", "  a"}) {
    EXPECT_EQ(exported->encode(text), original.encode(text)) << text;
    EXPECT_EQ(exported->decode(exported->encode(text)), original.decode(original.encode(text))) << text;
  }
}

}  // namespace
}  // namespace ingot::data
