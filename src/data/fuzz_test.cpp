// Files that users name, damaged in every way a fixed seed thinks of: each must be read, or refused with an error of
// base/error.h. Crashes, hangs and reads out of bounds show here, the last under the asan preset.
#include <sentencepiece_trainer.h>

#include <nlohmann/json.hpp>

#include "data/damage.h"
#include "data/hugging_face/precompiled.h"
#include "data/hugging_face/tokenizer.h"
#include "data/loader.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/test_support.h"
#include "data/text_reader.h"
#include "data/tiktoken_tokenizer.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

const std::string kText = "In the beginning <eos> \n\n  caf\xC3\xA9 \xF0\x9F\x98\x80 12 <0x41>\xFF";

void use_tokenizer(const Tokenizer& tokenizer) {
  const auto ids = tokenizer.encode(kText);
  tokenizer.decode(ids);
  tokenizer.encode_with_special(kText);
  for (const int32_t id : ids) tokenizer.piece(id);
}

TEST(Fuzz, damaged_indexes_are_read_or_refused) {
  const TemporaryFolder folder;
  counting_dataset(folder, "d", {3, 0, 9, 40, 1, 17});
  const std::string valid = content_of(folder / "d.idx");
  DataConfig config;
  config.sources = {{(folder / "d").string(), 1}};
  config.seq_len = 4;
  const int read = survivors(valid, 1000, 1, [&](const std::string& bytes) {
    folder.write("d.idx", bytes);
    for (const char* packing : {"stream", "best_fit"}) {
      config.packing = packing;
      Loader(config, Split::train).batch(0, 8);
    }
  });
  EXPECT_LT(read, 100) << "most damage contradicts the rest of the file";
}

TEST(Fuzz, damaged_sentencepiece_models_are_read_or_refused) {
  for (const char* name : {"unigram", "bpe"}) {
    const std::string valid = content_of(std::string("src/data/testdata/export_") + name + ".model");
    const int read = survivors(valid, 1500, 2, [](const std::string& bytes) { use_tokenizer(SentencePieceTokenizer(bytes, "fuzzed")); });
    EXPECT_GT(read, 10);
    EXPECT_LT(read, 1490);
  }
}

// The library follows the offsets of a character map without looking: one that points outside must not reach it.
TEST(Fuzz, damaged_character_maps_are_read_or_refused) {
  struct Lines : sentencepiece::SentenceIterator {
    std::vector<std::string> lines = std::vector<std::string>(50, "the quick brown fox jumps over the lazy dog");
    size_t at = 0;
    bool done() const override { return at == lines.size(); }
    void Next() override { ++at; }
    const std::string& value() const override { return lines[at]; }
    sentencepiece::util::Status status() const override { return {}; }
  } lines;
  std::string trained;
  ASSERT_TRUE(sentencepiece::SentencePieceTrainer::Train(
                  {{"model_type", "bpe"}, {"vocab_size", "310"}, {"byte_fallback", "true"}, {"minloglevel", "4"}}, &lines, &trained)
                  .ok());
  const auto model = SentencePieceModel::parse(trained, "trained");
  const SentencePieceTokenizer whole(trained, "trained");
  EXPECT_EQ(whole.encode("\xEF\xAC\x81"), whole.encode("fi")) << "the map of the valid model works";
  survivors(model.character_map, 150, 6, [&](const std::string& map) {
    auto changed = model;
    changed.character_map = map;
    use_tokenizer(SentencePieceTokenizer(changed.serialize(), "fuzzed"));
  });
  // The same map as a tokenizer.json carries it, read by ingot itself.
  const std::string text = "caf\xC3\xA9 e\xCC\x81 \xEF\xAC\x81\xEF\xBC\xA1 \xF0\x9F\x98\x80";
  EXPECT_EQ(Precompiled(model.character_map).apply("\xEF\xAC\x81 \xEF\xBC\xA1"), "fi A");
  survivors(model.character_map, 300, 8, [&](const std::string& map) { Precompiled(map).apply(text); });
  survivors(model.character_map.substr(0, 2048), 1000, 9,
            [&](const std::string& map) { Precompiled(std::string(model.character_map).replace(0, 2048, map)).apply(text); });
  // Damage to the small beginning, where every offset matters.
  survivors(model.character_map.substr(0, 2048), 600, 7, [&](const std::string& map) {
    auto changed = model;
    changed.character_map.replace(0, 2048, map);
    use_tokenizer(SentencePieceTokenizer(changed.serialize(), "fuzzed"));
  });
}

// Ranks of all bytes and a few merges.
std::string small_ranks() {
  std::string text;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte) {
    const char b[] = {static_cast<char>(byte)};
    text += base64_of(std::string_view(b, 1)) + " " + std::to_string(rank++) + "\n";
  }
  for (const char* token : {"he", "in", " b", " be", "gin", "ning", " begin", "\xC3\xA9", "  "})
    text += base64_of(token) + " " + std::to_string(rank++) + "\n";
  return text;
}

TEST(Fuzz, damaged_files_of_ranks_are_read_or_refused_with_the_line) {
  const TiktokenSettings settings{R"({"pattern": " ?\\p{L}+|\\s+|.", "special_tokens": {"<eos>": 300}})", ""};
  use_tokenizer(TiktokenTokenizer(small_ranks(), settings, "fuzzed.tiktoken"));
  const auto read = [&](const std::string& ranks) {
    try {
      use_tokenizer(TiktokenTokenizer(ranks, settings, "fuzzed.tiktoken"));
    } catch (const base::DataError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("fuzzed.tiktoken"));
      throw;
    }
  };
  EXPECT_LT(survivors(small_ranks(), 2000, 10, read), 1000);
  const std::string all_settings = settings.tiktoken_json;
  survivors(all_settings, 2000, 11, [&](const std::string& json) {
    use_tokenizer(TiktokenTokenizer(small_ranks(), {json, ""}, "fuzzed.tiktoken"));
  });
  survivors(all_settings, 1000, 12, [&](const std::string& json) {
    use_tokenizer(TiktokenTokenizer(small_ranks(), {"", json}, "fuzzed.tiktoken"));
  });
}

// A recorded tokenizer with few tokens, so that damage meets the structure around them.
nlohmann::json small_tokenizer_json(const std::string& name) {
  auto json = nlohmann::json::parse(content_of("src/data/testdata/tokenizer_" + name + ".json"))["tokenizer"];
  auto& vocab = json["model"]["vocab"];
  if (json["model"]["type"] == "BPE") {
    json["model"]["merges"] = nlohmann::json::array();
    for (auto entry = vocab.begin(); entry != vocab.end();)
      entry = entry.value().get<int>() % 16 == 3 ? std::next(entry) : vocab.erase(entry);
  } else {
    while (vocab.size() > 40) vocab.erase(vocab.size() - 1);
  }
  return json;
}

TEST(Fuzz, damaged_tokenizer_jsons_are_read_or_refused) {
  for (const char* name : {"gemma", "llama3", "unigram_unknown", "behaviours", "words"})
    survivors(small_tokenizer_json(name).dump(), 600, 3,
              [](const std::string& text) { use_tokenizer(HuggingFaceTokenizer(text, "", "fuzzed")); });
}

TEST(Fuzz, tokenizer_jsons_with_wrong_types_are_read_or_refused) {
  const nlohmann::json wrong[] = {
      nullptr, true, -1, 1e300, "", "x", nlohmann::json::array(), nlohmann::json::object(), {1}, {{"type", "Sequence"}}};
  for (const char* name : {"gemma", "llama3", "unigram_bytes", "words", "affixes"}) {
    const auto valid = small_tokenizer_json(name);
    const auto flat = valid.flatten();
    for (const auto& [pointer, value] : flat.items()) {
      // Each value, and what holds it, becomes something else.
      for (const auto& at : {pointer, pointer.substr(0, pointer.rfind('/'))}) {
        for (const auto& other : wrong) {
          auto changed = valid;
          changed[nlohmann::json::json_pointer(at)] = other;
          try {
            use_tokenizer(HuggingFaceTokenizer(changed.dump(), "", "fuzzed"));
          } catch (const base::Error&) {
          }
        }
      }
    }
  }
}

TEST(Fuzz, damaged_json_lines_are_parsed_or_refused_and_never_invalid) {
  const std::string valid =
      "{\"text\": \"caf\\u00e9 \\ud83d\\ude00 \xC3\xA9\", \"meta\": {\"a\": [1, 2.5e3, null, true]}}\n{\"id\": 7, \"text\": "
      "\"x\"}\n\n{\"text\": \"\"}\n";
  TextBlock block{"f.jsonl", true, 1, false, false, ""};
  for (const bool skip_bad : {false, true}) {
    const TextOptions options{.skip_bad = skip_bad};
    const int read = survivors(valid, 4000, 4, [&](const std::string& bytes) {
      block.bytes = bytes;
      for (const auto& part : parse_block(block, options).parts) EXPECT_TRUE(is_valid_utf8(part.text));
    });
    if (skip_bad) EXPECT_EQ(read, 4000);
    else EXPECT_LT(read, 3900);
  }
}

TEST(Fuzz, damaged_loader_states_are_read_or_refused) {
  const TemporaryFolder folder;
  DataConfig config;
  config.sources = {{counting_dataset(folder, "d", {50}).string(), 1}};
  config.seq_len = 8;
  const std::string valid = Loader(config, Split::train).state(3, 30).to_json();
  survivors(valid, 3000, 5, [](const std::string& text) { LoaderState::from_json(text); });
}

}  // namespace
}  // namespace ingot::data
