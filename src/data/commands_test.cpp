#include "data/commands.h"

#include <nlohmann/json.hpp>
#include <sstream>

#include "data/test_support.h"

namespace ingot::data {
namespace {

using base::UsageError;

const std::string kModel = "src/data/testdata/export_unigram.model";

struct DataCommands : ::testing::Test {
  TemporaryFolder folder;
  std::ostringstream out;
  nlohmann::json json() const { return nlohmann::json::parse(out.str()); }
  std::string tokens() {
    TokenizeCommand command;
    command.text.inputs = {folder.write("t.txt", "In the beginning\n\nGod created the heaven and the earth.\n")};
    command.text.split = "paragraph";
    command.tokenizer = kModel;
    command.output = (folder / "t.bin").string();
    command.json = true;
    EXPECT_EQ(run_data_tokenize(command, out), 0);
    return (folder / "t").string();
  }
};

TEST_F(DataCommands, diff_says_which_documents_two_datasets_share) {
  const auto write = [&](const std::string& name, const std::vector<std::vector<int32_t>>& documents) {
    IndexedDatasetWriter writer(folder / name, TokenType::int32);
    for (const auto& document : documents) writer.add_document(document);
    writer.finish();
    return (folder / name).string();
  };
  const auto a = write("a", {{1, 2}, {3}, {4, 5, 6}, {3}}), b = write("b", {{3}, {1, 2}, {7}, {4, 5, 6}}),
             c = write("c", {{1, 2}, {3}, {4, 5, 6}, {3}});
  EXPECT_EQ(run_data_diff({.a = a, .b = b, .json = true}, out), 3);
  auto said = json();
  EXPECT_EQ(said["common"], 3);
  EXPECT_EQ(said["same_place"], 0);
  EXPECT_EQ(said["a"]["alone"], 1);
  EXPECT_EQ(said["a"]["examples"][0]["document"], 3) << "of two equal ones the first is in common";
  EXPECT_EQ(said["b"]["examples"][0]["beginning"], "7");
  out.str("");
  EXPECT_EQ(run_data_diff({.a = a, .b = c}, out), 0);
  EXPECT_THAT(out.str(), ::testing::HasSubstr("4 documents in common, 4 of them at the same place"));
  out.str("");
  EXPECT_EQ(run_data_diff({.a = write("d", {{1}, {2}, {1}}), .b = write("e", {{9}, {2}, {1}}), .json = true}, out), 3);
  EXPECT_EQ(json()["same_place"], 2);
  EXPECT_EQ(json()["a"]["examples"][0]["document"], 0);
  expect_error<UsageError>([&] { run_data_diff({.a = a}, out); }, {"two"});
}

TEST_F(DataCommands, a_classifier_is_trained_on_files) {
  TrainClassifierCommand command;
  std::string good, bad;
  for (int i = 0; i < 100; ++i)
    good += R"({"text": "proof of a theorem )" + std::to_string(i) + "\"}\n",
        bad += R"({"text": "free offer )" + std::to_string(i) + "\"}\n";
  command.positive = {folder.write("good.jsonl", good)};
  command.negative = {folder.write("bad.jsonl", bad)};
  command.output = folder / "c";
  command.json = true;
  EXPECT_EQ(run_data_train_classifier(command, out), 0);
  EXPECT_EQ(json()["auc"], 1);
  EXPECT_TRUE(fs::exists(folder / "c"));
  command.max_bytes = 100;
  expect_error<base::DataError>([&] { run_data_train_classifier(command, out); }, {"--max-bytes"});
  command.negative = {};
  expect_error<UsageError>([&] { run_data_train_classifier(command, out); }, {"--negative"});
}

TEST_F(DataCommands, tokenize_writes_a_dataset_that_inspect_describes) {
  const std::string prefix = tokens();
  const auto made = json();
  EXPECT_EQ(made["output"], prefix);
  EXPECT_EQ(made["documents"], 2);
  EXPECT_EQ(made["dtype"], "uint16");
  out.str("");
  EXPECT_EQ(run_data_inspect({.path = prefix + ".idx", .tokenizer = kModel, .json = true}, out), 0);
  const auto seen = json();
  EXPECT_EQ(seen["tokens"], made["tokens"]);
  EXPECT_EQ(seen["documents"], 2);
  EXPECT_EQ(seen["smallest_id"], 1) << "eos ends each document";
  EXPECT_EQ(seen["samples"][0]["text"], "In the beginning<eos>");
  EXPECT_EQ(seen["fits_tokenizer"], true);
  int64_t documents = 0, counted = 0;
  for (const auto& bin : seen["lengths"]) {
    documents += bin["documents"].get<int64_t>();
    counted += bin["tokens"].get<int64_t>();
  }
  EXPECT_EQ(documents, 2);
  EXPECT_EQ(counted, seen["tokens"]);
  out.str("");
  run_data_inspect({.path = prefix, .tokenizer = kModel, .samples = 1}, out);
  EXPECT_THAT(out.str(), ::testing::AllOf(::testing::HasSubstr("2 documents"), ::testing::HasSubstr("document 0: In the beginning<eos>")));
}

TEST_F(DataCommands, inspect_with_another_tokenizer_is_a_missed_check) {
  counting_dataset(folder, "big", {700});
  EXPECT_EQ(run_data_inspect({.path = (folder / "big").string(), .tokenizer = kModel}, out), 3);
  EXPECT_THAT(out.str(), ::testing::HasSubstr("the id 699 is outside the vocabulary"));
}

TEST_F(DataCommands, tokenizer_is_trained_and_exported) {
  TrainTokenizerCommand train;
  std::string text;
  for (int i = 0; i < 200; ++i) text += "the quick brown fox jumps over the lazy dog and the dog sleeps " + std::to_string(i * i) + "\n";
  train.text.inputs = {folder.write("t.txt", text)};
  train.output = (folder / "t").string();
  train.algorithm = "bpe";
  train.vocab_size = 400;
  train.json = true;
  EXPECT_EQ(run_data_train_tokenizer(train, out), 0);
  EXPECT_EQ(json()["vocab_size"], 400);
  out.str("");
  EXPECT_EQ(run_data_export_tokenizer({.tokenizer = (folder / "t.model").string(), .output = (folder / "hf").string()}, out), 0);
  EXPECT_TRUE(fs::exists(folder / "hf" / "tokenizer.json"));
}

TEST_F(DataCommands, missing_and_wrong_flags_are_named) {
  TokenizeCommand command;
  expect_error<UsageError>([&] { run_data_tokenize(command, out); }, {"--tokenizer"});
  command.tokenizer = kModel;
  expect_error<UsageError>([&] { run_data_tokenize(command, out); }, {"--output"});
  command.output = (folder / "x").string();
  expect_error<UsageError>([&] { run_data_tokenize(command, out); }, {"no input file"});
  command.text.split = "words";
  expect_error<UsageError>([&] { run_data_tokenize(command, out); }, {"words", "paragraph"});
  command.text.split = "line";
  command.text.format = "xml";
  expect_error<UsageError>([&] { run_data_tokenize(command, out); }, {"xml", "jsonl"});
  expect_error<UsageError>([&] { run_data_train_tokenizer({}, out); }, {"--output"});
  expect_error<UsageError>([&] { run_data_inspect({}, out); }, {"prefix"});
}

}  // namespace
}  // namespace ingot::data
