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
