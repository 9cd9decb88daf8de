// The other files that users name (fuzz_test.cpp), damaged, cut off anywhere or made to claim more than they hold: each is read, or refused
// with a DataError, FileError or ConfigError that names it, in bounded time and memory.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/chat/chat_template.h"
#include "data/chat/conversation.h"
#include "data/damage.h"
#include "data/hugging_face/tokenizer.h"
#include "data/loader.h"
#include "data/process/classifier.h"
#include "data/process/recipe.h"
#include "data/process/spool.h"
#include "data/reference_scores.h"
#include "data/test_compression.h"
#include "data/test_support.h"
#include "data/text_reader.h"

namespace ingot::data {
namespace {

using testing::HasSubstr;

// `use`, whose errors must name the file.
template <class Use>
auto naming(const std::string& name, const Use& use) {
  return [&use, name](const std::string& bytes) {
    try {
      use(bytes);
    } catch (const base::Error& refused) {
      EXPECT_THAT(refused.what(), HasSubstr(name));
      throw;
    }
  };
}

// Cuts it off at each length, or at so many that lie evenly. Returns how many were still read.
template <class Use>
int cut_anywhere(const std::string& valid, size_t most, const Use& use) {
  int read = 0;
  for (size_t i = 0; i < std::min(most, valid.size()); ++i) {
    try {
      use(valid.substr(0, valid.size() <= most ? i : i * valid.size() / most));
      ++read;
    } catch (const base::Error&) {
    }
  }
  return read;
}

struct FuzzFiles : ::testing::Test {
  TemporaryFolder folder;
};

void read_all(const IndexedDataset& dataset) {
  std::vector<int32_t> ids(static_cast<size_t>(dataset.tokens()));
  dataset.read_targets(0, ids);
  for (int64_t document = 0; document < dataset.documents(); ++document) dataset.document_tokens(document);
}

TEST_F(FuzzFiles, token_files_are_refused_wherever_they_are_cut_off) {
  {
    IndexedDatasetWriter writer(folder / "d", TokenType::uint16);
    for (int32_t i = 0; i < 60; ++i) {
      writer.append({&i, 1}, i % 3 > 0);
      if (i % 7 == 6) writer.end_document();
    }
    writer.finish();
  }
  for (const char* name : {"d.idx", "d.bin", "d.mask"}) {
    const auto valid = content_of(folder / name);
    const auto use = naming((folder / "d").string(), [&](const std::string& bytes) {
      folder.write(name, bytes);
      read_all(IndexedDataset(folder / "d"));
    });
    EXPECT_EQ(cut_anywhere(valid, 150, use), 0) << name;
    survivors(valid, 200, 21, use);
    folder.write(name, valid);
  }
}

// What numbers of the index may claim: none makes it look for more memory than the file has.
TEST_F(FuzzFiles, counts_of_an_index_may_claim_anything) {
  counting_dataset(folder, "d", {3, 5, 7});
  const auto valid = content_of(folder / "d.idx");
  const auto before = peak_bytes();
  for (size_t at = 0; at + 8 <= valid.size(); ++at) {
    for (const int64_t claim : {int64_t{-1}, INT64_MAX, int64_t{1} << 40}) {
      auto lie = valid;
      std::memcpy(lie.data() + at, &claim, sizeof claim);
      try {
        folder.write("d.idx", lie);
        read_all(IndexedDataset(folder / "d"));
      } catch (const base::DataError& refused) {
        EXPECT_THAT(refused.what(), HasSubstr((folder / "d").string()));
      }
    }
  }
  EXPECT_LT(peak_bytes() - before, int64_t{64} << 20);
}

// Opening checks the ends of the index alone: rows made through whatever stands between them are those of an error, or lie in the data.
TEST_F(FuzzFiles, rows_of_a_damaged_index_stay_inside_the_data) {
  std::vector<int> lengths;
  for (int i = 0; i < 24; ++i) lengths.push_back(i * 7 % 23 + i % 2);
  counting_dataset(folder, "d", lengths);
  write_reference_scores(IndexedDataset(folder / "d"), std::vector<double>(lengths.size(), -1));
  const auto valid = content_of(folder / "d.idx");
  int refused = 0;
  for (const char* packing : {"stream", "best_fit", "pairs"}) {
    DataConfig config;
    config.sources = {{(folder / "d").string(), 1}};
    config.seq_len = 48;
    config.packing = packing;
    const auto use = naming((folder / "d").string(), [&](const std::string& bytes) {
      folder.write("d.idx", bytes);
      try {
        const Loader loader(config, Split::train, {.vocab_size = 4096});
        loader.batch(0, std::min<int64_t>(loader.samples(), 16));
        for (int64_t sample = 0; sample < std::min<int64_t>(loader.samples(), 16); ++sample) loader.reads(sample), loader.origin(sample);
      } catch (const base::DataError&) {
        ++refused;
        throw;
      }
    });
    EXPECT_GT(survivors(valid, 100, 31, use), 0) << packing;
    for (size_t at = 34; at < valid.size(); at += 4) {  // entries that point far ahead, back, and outside
      for (const int32_t claim : {-1, 23}) {
        auto lie = valid;
        std::memcpy(lie.data() + at, &claim, sizeof claim);
        try {
          use(lie);
        } catch (const base::Error&) {
        }
      }
    }
  }
  EXPECT_GT(refused, 150);
}

TEST_F(FuzzFiles, reference_scores_are_those_of_the_documents_or_refused) {
  const IndexedDataset dataset(counting_dataset(folder, "d", {3, 5, 7}));
  write_reference_scores(dataset, std::vector<double>{-1.5, -2, -3});
  const auto valid = content_of(folder / "d.reference");
  const auto use = naming("d.reference", [&](const std::string& bytes) {
    folder.write("d.reference", bytes);
    for (const double score : read_reference_scores(dataset)) EXPECT_LE(score, 0);
  });
  EXPECT_EQ(cut_anywhere(valid, 1000, use), 0);
  survivors(valid, 200, 22, use);
}

int64_t bytes_of_texts(const fs::path& file, const TextOptions& options) {
  TextReader reader({file}, options);
  int64_t bytes = 0;
  for (TextBlock block; reader.next(block);)
    for (const auto& part : parse_block(block, options).parts) bytes += static_cast<int64_t>(part.text.size());
  return bytes;
}

TEST_F(FuzzFiles, compressed_lines_are_read_or_refused) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "{\"text\": \"line " + std::to_string(i * i) + " caf\\u00e9\"}\n";
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    const auto name = std::string("d.jsonl") + kExtensions[i];
    const auto valid = packed(kFormats[i], text);
    const auto use = naming(name, [&](const std::string& bytes) { bytes_of_texts(folder.write(name, bytes), {.block_bytes = 256}); });
    EXPECT_LE(cut_anywhere(valid, 150, use), 4) << name << ": nothing, or less than tells the format";
    EXPECT_LT(survivors(valid, 200, 23, use), 60) << name;
  }
}

// 10 MB that unpack to 10 GB: one line without an end.
TEST_F(FuzzFiles, what_unpacks_to_far_more_is_refused_as_a_line_and_read_in_pieces_as_text) {
  const std::string piece = packed(Format::gzip, std::string(size_t{64} << 20, 'a'));
  std::string bomb;
  for (int i = 0; i < 160; ++i) bomb += piece;
  ASSERT_LT(bomb.size(), size_t{11} << 20);
  const auto file = folder.write("bomb.jsonl.gz", bomb);
  const auto before = peak_bytes();
  expect_error<base::DataError>([&] { bytes_of_texts(file, {}); }, {"bomb.jsonl.gz:1: ", "longer than"});
  EXPECT_LT(peak_bytes() - before, int64_t{1} << 30);
  TextReader reader({folder.write("bomb.txt.gz", bomb)}, {.split = DocumentSplit::line});
  const auto before_text = peak_bytes();
  TextBlock block;
  for (int64_t bytes = 0; bytes < int64_t{64} << 20; bytes += static_cast<int64_t>(block.bytes.size())) ASSERT_TRUE(reader.next(block));
  EXPECT_LT(peak_bytes() - before_text, int64_t{32} << 20);
}

// A frame that asks for a window of gigabytes.
TEST_F(FuzzFiles, zstd_frames_with_huge_windows_are_refused) {
  for (const char window : {'\x68', '\xA0', '\xF8', '\xFF'}) {
    const auto file = folder.write("w.jsonl.zst", std::string("\x28\xB5\x2F\xFD\x00", 5) + window + std::string(200, '\0'));
    const auto before = peak_bytes();
    try {
      bytes_of_texts(file, {});
    } catch (const base::DataError& refused) {
      EXPECT_THAT(refused.what(), HasSubstr("w.jsonl.zst"));
    }
    EXPECT_LT(peak_bytes() - before, int64_t{300} << 20);
  }
}

std::string nested(const std::string& open, int depth) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  return text;
}

TEST_F(FuzzFiles, deep_json_ends) {
  for (const char* open : {"[", "{\"a\":"}) {
    for (const int depth : {1000, 1'000'000}) {
      const auto deep = nested(open, depth), closed = deep + "1" + nested(*open == '[' ? "]" : "}", depth);
      for (const auto& value : {deep, closed}) {
        const auto line = folder.write("deep.jsonl", "{\"text\": \"x\", \"meta\": " + value + "}\n");
        try {
          bytes_of_texts(line, {});
        } catch (const base::DataError& refused) {
          EXPECT_THAT(refused.what(), HasSubstr("deep.jsonl:1: "));
        }
        expect_error<base::DataError>([&] { HuggingFaceTokenizer("{\"model\": " + value + "}", "", "deep.json"); }, {"deep.json"});
        for (const auto* member : {"normalizer", "pre_tokenizer", "decoder", "post_processor", "added_tokens"})
          expect_error<base::DataError>(
              [&] { HuggingFaceTokenizer(fmt::format("{{\"{}\": {}, \"model\": {{}}}}", member, value), "", "deep.json"); }, {"deep.json"});
        expect_error<base::DataError>([&] { LoaderState::from_json("{\"sources\": " + value + "}"); }, {"data loader"});
      }
    }
  }
}

const std::string kTemplate =
    "{{ bos_token }}{% for m in messages %}{% if loop.first and m['role'] == 'system' %}{{ m.content | trim }}{% elif m.role == 'user' %}"
    "[INST] {{ m.content }} [/INST]{% else %}{% generation %} {{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
    "{% set ns = namespace(n=1 + 2 * 3) %}{{ ns.n }}{% macro f(x) %}{{ x[::-1] }}{% endmacro %}{{ f('ab') }}";
const std::string kLine =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
    "\"content\": \"a\"}], \"tools\": [{\"name\": \"t\", \"n\": 1.5}]}";

TEST_F(FuzzFiles, damaged_chat_templates_are_used_or_refused) {
  const auto messages = nlohmann::ordered_json::parse(kLine)["messages"];
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}})");
  const auto use = [&](const std::string& source) {
    const auto made = chat::ChatTemplate::of_file(folder.write("t.jinja", source), folder.path());
    made.render(messages, true);
    made.parts_of(messages);
  };
  use(kTemplate);
  cut_anywhere(kTemplate, 100, use);
  const int read = survivors(kTemplate, 600, 24, use);
  EXPECT_GT(read, 20);
  EXPECT_LT(read, 590);
  const std::string config = R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ messages[0].content }}"})";
  folder.write("tokenizer_config.json", "{\"chat_template\": " + nested("[", 1'000'000) + nested("]", 1'000'000) + "}");
  EXPECT_FALSE(chat::ChatTemplate::of_folder(folder.path()));
  for (const char* name : {"1", "[]", "{}", "null"}) {
    folder.write("tokenizer_config.json", std::string("{\"chat_template\": [{\"name\": ") + name + ", \"template\": \"x\"}]}");
    EXPECT_FALSE(chat::ChatTemplate::of_folder(folder.path())) << name;
  }
  survivors(config, 150, 25, [&](const std::string& bytes) {
    folder.write("tokenizer_config.json", bytes);
    chat::ChatTemplate::of_folder(folder.path());
  });
}

// Letters stand for themselves.
struct LetterTokenizer : Tokenizer {
  std::vector<int32_t> encode(std::string_view text) const override { return {text.begin(), text.end()}; }
  std::vector<int32_t> encode_with_special(std::string_view text) const override { return encode(text); }
  std::string decode(std::span<const int32_t> ids, bool) const override { return {ids.begin(), ids.end()}; }
  int32_t vocab_size() const override { return 256; }
  std::string piece(int32_t id) const override { return {static_cast<char>(id)}; }
  int32_t id_of(std::string_view) const override { return -1; }
};

const std::string kShared = R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "id": "7"})";
const std::string kPair =
    R"({"prompt": [{"role": "user", "content": "q"}], "chosen": [{"role": "assistant", "content": "a"}], "rejected": "b"})";

TEST_F(FuzzFiles, damaged_conversations_are_read_or_refused) {
  const chat::ChatTemplate chat_template(kTemplate, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  const LetterTokenizer tokenizer;
  const auto use = [&](const std::string& line) { chat::encode_conversation(line, chat_template, tokenizer); };
  const auto use_pair = [&](const std::string& line) { chat::encode_preference(line, chat_template, tokenizer); };
  use(kLine), use(kShared), use_pair(kPair);
  for (const auto& line : {kLine, kShared}) {
    cut_anywhere(line, 1000, use);
    EXPECT_GT(survivors(line, 1200, 26, use), 10);
  }
  cut_anywhere(kPair, 1000, use_pair);
  EXPECT_GT(survivors(kPair, 1200, 27, use_pair), 10);
}

TEST_F(FuzzFiles, conversations_with_wrong_types_are_read_or_refused) {
  using Json = nlohmann::ordered_json;
  const chat::ChatTemplate chat_template(kTemplate, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  const LetterTokenizer tokenizer;
  const Json wrong[] = {nullptr, true, -1, 1e300, "", "x", Json::array(), Json::object(), {1}, {{"role", 1}}};
  for (const auto& text : {kLine, kShared, kPair}) {
    const auto valid = Json::parse(text), flat = valid.flatten();
    for (const auto& [pointer, value] : flat.items()) {
      for (std::string at = pointer; !at.empty(); at.erase(at.rfind('/'))) {
        for (const auto& other : wrong) {
          auto changed = valid;
          changed[Json::json_pointer(at)] = other;
          try {
            if (text == kPair) chat::encode_preference(changed.dump(), chat_template, tokenizer);
            else chat::encode_conversation(changed.dump(), chat_template, tokenizer);
          } catch (const base::DataError&) {
          }
        }
      }
    }
  }
  for (const int depth : {1000, 1'000'000}) {
    const auto deep = nested("[", depth) + nested("]", depth);
    for (const auto& line : {"{\"messages\": " + deep + "}", "{\"messages\": [{\"role\": \"assistant\", \"content\": " + deep + "}]}",
                             "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": " + deep + "}"}) {
      try {
        chat::encode_conversation(line, chat_template, tokenizer);
      } catch (const base::DataError&) {
      }
    }
  }
}

TEST_F(FuzzFiles, damaged_recipes_are_read_or_refused) {
  folder.write("a.jsonl", "{\"text\": \"x\"}\n");
  const std::string valid =
      "folder = \"out\"\nshard_mib = 16\n[[sources]]\nfiles = [\"*.jsonl\"]\n[[steps]]\nkind = \"rules\"\nkeep = [\"words >= 2\"]\n"
      "[[steps]]\nkind = \"near_duplicates\"\nbands = 3\n";
  const auto use = [&](const std::string& bytes) { process::load_recipe(folder.write("r.toml", bytes)); };
  use(valid);
  cut_anywhere(valid, 100, use);
  EXPECT_GT(survivors(valid, 900, 28, use), 3);
  for (const int depth : {200, 100'000}) {
    const auto deep = folder.write("r.toml", "folder = " + nested("[", depth));
    expect_error<base::ConfigError>([&] { process::load_recipe(deep); }, {"r.toml"});
  }
}

TEST_F(FuzzFiles, damaged_classifiers_are_refused) {
  process::ClassifierResult result;
  process::train_classifier({"good text"}, {"bad text"}, {.epochs = 1}, result).save(folder / "c");
  const auto valid = content_of(folder / "c");
  const auto use = naming("bad", [&](const std::string& bytes) { process::Classifier::load(folder.write("bad", bytes)); });
  EXPECT_EQ(cut_anywhere(valid, 40, use), 0);
  EXPECT_LE(survivors(valid, 60, 29, use), 2) << "damage may change nothing";
  fs::resize_file(folder.write("huge", valid), uint64_t{1} << 36);  // a hole
  const auto before = peak_bytes();
  expect_error<base::FileError>([&] { process::Classifier::load(folder / "huge"); }, {"huge"});
  EXPECT_LT(peak_bytes() - before, int64_t{64} << 20);
}

TEST_F(FuzzFiles, damaged_work_files_of_data_process_are_refused) {
  std::vector<process::Document> documents;
  for (int i = 0; i < 20; ++i) documents.push_back({.text = "text " + std::to_string(i), .members = {{"id", i}}, .source = i % 2});
  const auto block = process::packed(documents);
  const auto use_block = [](const std::string& bytes) { process::unpacked(bytes); };
  EXPECT_EQ(process::unpacked(block).size(), 20U);
  EXPECT_EQ(cut_anywhere(block, 1000, use_block), 0);
  survivors(block, 1500, 30, use_block);
  {
    process::SpoolWriter writer(folder / "valid");
    writer.add(block, 20);
    writer.add(block, 20);
    writer.close();
  }
  const auto use = naming("spool", [&](const std::string& bytes) {
    process::SpoolReader reader(folder.write("spool", bytes));
    std::string next;
    for (int64_t count = 0; reader.next(next, count);) EXPECT_LE(next.size(), bytes.size());
  });
  const auto valid = content_of(folder / "valid");
  EXPECT_EQ(cut_anywhere(valid, 2 * valid.size(), use), 2) << "nothing, and one block";
  survivors(valid, 300, 31, use);
}

}  // namespace
}  // namespace ingot::data
