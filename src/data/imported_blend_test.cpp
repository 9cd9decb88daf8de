// The oracle of the forms: Megatron-LM's get_blend_from_list and NeMo's examples of data_prefix, written down by hand.
#include "data/imported_blend.h"

#include <ctime>

#include "base/settings.h"
#include "data/commands.h"
#include "data/config.h"
#include "data/damage.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

using base::DataError;
using ::testing::HasSubstr;

std::string text_of(const std::vector<ImportedBlend::Entry>& entries) {
  std::vector<std::string> words;
  for (const auto& entry : entries) words.push_back(entry.weight ? fmt::format("{}*{}", *entry.weight, entry.path) : entry.path);
  return fmt::format("{}", fmt::join(words, " "));
}

TEST(ImportedBlend, takes_the_words_of_megatron) {
  EXPECT_EQ(text_of(parse_data_path({"30", "A", "70", "B"}, "x")), "30*A 70*B");
  EXPECT_EQ(text_of(parse_data_path({"A"}, "x")), "A");
  EXPECT_EQ(text_of(parse_data_path({"A", "B", "C"}, "x")), "A B C");
  EXPECT_EQ(text_of(parse_data_path({"A", "B"}, "x")), "A B") << "an even number without weights";
  EXPECT_EQ(text_of(parse_data_path({"1e-3", "2024", "+0.5", "s3://b/k", "0", "C"}, "x")), "0.001*2024 0.5*s3://b/k 0*C");
  EXPECT_EQ(text_of(parse_data_args(" 30 A\r\n70\tB\n\n", "x")), "30*A 70*B");
}

TEST(ImportedBlend, says_which_word_is_out_of_place) {
  const auto refused = [](const std::vector<std::string>& words, const std::vector<std::string>& expected) {
    expect_error<DataError>([&] { parse_data_path(words, "--data-path"); }, expected);
  };
  refused({}, {"--data-path: there are no sources"});
  refused({"30", "A", "70"}, {"behind the weight 70, the last of 3 words", "WEIGHT PREFIX"});
  refused({"30"}, {"behind the weight 30"});
  refused({"A", "30", "B", "70"}, {"word 1 is \"A\", and a weight belongs there"});
  refused({"30", "A", "B", "70"}, {"word 3 is \"B\""});
  refused({"30", "A", "B"}, {"word 3 is \"B\""});
  for (const char* weight : {"-1", "nan", "NaN", "inf", "-inf", "1e999"}) refused({weight, "A", "1", "B"}, {"weight"});
  refused({"0", "A", "0.0", "B"}, {"no weight is above 0"});
  refused({"1", "a\nb"}, {"is no prefix"});
  refused({"1", ""}, {"is no prefix"});
}

TEST(ImportedBlend, takes_lists_and_texts_of_each_split) {
  const auto blend = parse_per_split_data_args(R"({"train": ["30", "A", 70, "B"], "valid": "C  D", "test": null})", "x");
  EXPECT_EQ(text_of(blend.train) + "|" + text_of(blend.validation) + "|" + text_of(blend.test), "30*A 70*B|C D|");
  for (const auto& [json, words] :
       std::vector<std::pair<std::string, std::string>>{{"[1", "not JSON"},
                                                        {"[]", "not an object"},
                                                        {"{}", "there is no train"},
                                                        {R"({"train": []})", "there is no train"},
                                                        {R"({"train": {"a": 1}})", "train is neither"},
                                                        {R"({"train": ["1", ["A"]]})", "item 2 of train"},
                                                        {R"({"train": ["A"], "validation": ["B"]})", "none of train, valid, test"},
                                                        {R"({"train": ["1", "A", "1"]})", "x: train: behind the weight 1"}})
    expect_error<DataError>([&] { parse_per_split_data_args(json, "x"); }, {words});
}

constexpr const char* kNemo = R"(
model:
  data:  # the data
    # data_prefix of the corpus
    data_prefix:
      - .3   # of the web
      - /d/web_text_document
      - '0.7'
      - "/d/#books"
    splits_string: 980,10,10
)";

constexpr const char* kNemoSplits = R"(data_prefix:
  train: [1.0, /d/a,
          2.0, /d/b]  # two
  validation:
  - /d/c
  test: null
seq_length: 8
)";

TEST(ImportedBlend, takes_the_lists_of_nemo) {
  EXPECT_EQ(text_of(parse_nemo_data_prefix(kNemo, "x").train), "0.3*/d/web_text_document 0.7*/d/#books");
  auto blend = parse_nemo_data_prefix(kNemoSplits, "x");
  EXPECT_EQ(text_of(blend.train) + "|" + text_of(blend.validation) + "|" + text_of(blend.test), "1*/d/a 2*/d/b|/d/c|");
  EXPECT_EQ(text_of(parse_nemo_data_prefix("data_prefix: [0.3, A, 0.7, B]\r\n", "x").train), "0.3*A 0.7*B");
  EXPECT_EQ(text_of(parse_nemo_data_prefix("data_prefix: A", "x").train), "A");
  EXPECT_EQ(text_of(parse_nemo_data_prefix("a:\n  data_prefix:\n  - A\n  - B\nb: 1", "x").train), "A B");
  blend = parse_nemo_data_prefix("data_prefix: {train: [1, A], validation: [B], test: [C, D]}", "x");
  EXPECT_EQ(text_of(blend.train) + "|" + text_of(blend.validation) + "|" + text_of(blend.test), "1*A|B|C D");
}

TEST(ImportedBlend, says_where_yaml_is_more_than_lists) {
  for (const auto& [yaml, words] : std::vector<std::pair<std::string, std::string>>{
           {"", "x: there is no data_prefix"},
           {"data_prefix:\nseq: 1", "x:1: a list is missing"},
           {"data_prefix: ???", "x:1: ??? is what NeMo fills in"},
           {"data_prefix: [1, \"${root}/a\"]\ndata_prefix: [A]", "x:2: data_prefix stands here, too"},
           {"data_prefix: ${root}", "is what NeMo fills in"},
           {"data_prefix: *anchor", "of YAML only lists"},
           {"data_prefix: [1, A", "\"[\" is not closed"},
           {"data_prefix: [1, A] B", "does not end"},
           {"data_prefix: [1, [A]]", "x:1"},
           {"data_prefix: [1,, A]", "nothing between two commas"},
           {"data_prefix:\n  - 1\n  -A", "x:3: \"-A\" is no item"},
           {"data_prefix:\n  train: [A]\n  dev: [B]", "x:3: \"dev: [B]\" is none of train"},
           {"data_prefix:\n  train: [A]\n  train: [B]", "x:3: train stands here twice"},
           {"data_prefix:\n  validation: [A]", "has no train"},
           {"data_prefix: {train: A}", "not of the form"},
           {"data_prefix: {training: [A]}", "none of train"},
           {"\ndata_prefix: [0.3, A, 0.7]", "x:2: behind the weight 0.7"},
           {"data_prefix: ['A]", "without escapes"}})
    expect_error<DataError>([&] { parse_nemo_data_prefix(yaml, "x"); }, {words});
}

TEST(ImportedBlend, is_read_or_refused_however_it_is_damaged) {
  for (const std::string valid : {kNemo, kNemoSplits, "data_prefix: {train: [1, A], validation: [B], test: [C, D]}"})
    EXPECT_LT(survivors(valid, 1500, 4, [](const std::string& text) { settings_of(parse_nemo_data_prefix(text, "x")); }), 1500);
  survivors(R"({"train": ["30", "A", 70, "B"], "valid": "C  D", "test": null})", 1500, 5,
            [](const std::string& text) { settings_of(parse_per_split_data_args(text, "x")); });
}

// Regression: the whole list was gone through again for each of its lines.
TEST(ImportedBlend, a_list_of_many_lines_is_read_at_once) {
  constexpr size_t kSources = 300'000;
  std::string yaml = "data_prefix: [";
  for (size_t i = 0; i < kSources; ++i) yaml += "\n1, A,";
  const auto start = std::clock();
  EXPECT_EQ(parse_nemo_data_prefix(yaml + "]", "x").train.size(), kSources);
  expect_error<DataError>([&] { parse_nemo_data_prefix(yaml, "x"); }, {"x:1: \"[\" is not closed"});
  EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 10);
}

struct ImportBlend : ::testing::Test {
  TemporaryFolder folder;
  std::string a, b;
  void SetUp() override {
    a = counting_dataset(folder, "a", {40}).string();
    b = counting_dataset(folder, "quo\"te", {400}).string();
  }
};

// What is printed are settings that a run takes, with the shares that were asked for.
TEST_F(ImportBlend, gives_settings_of_a_run) {
  std::ostringstream out;
  EXPECT_EQ(run_data_import_blend({.train_data_path = {"30", a, "70", b}, .valid_data_path = {"1", b, "0", a}, .test_data_path = {a}}, out),
            0);
  DataConfig config;
  base::SettingsTable table;
  declare_settings(table, config);
  table.load_toml(out.str(), "printed");
  ASSERT_EQ(config.sources.size(), 2u);
  EXPECT_EQ(config.sources[1].path, b);
  EXPECT_EQ(config.sources[0].weight / config.sources[1].weight, 30.0 / 70);
  EXPECT_EQ(config.validation, std::vector<std::string>{b});
  EXPECT_EQ(config.temperature, 0);
  EXPECT_THAT(out.str(), HasSubstr("# test, for 'ingot eval': \"" + a));

  const auto list = folder.write("list", a + " " + b).string(), toml = (folder / "out.toml").string();
  std::ostringstream nothing;
  EXPECT_EQ(run_data_import_blend({.data_args_path = list, .output = toml}, nothing), 0);
  EXPECT_EQ(nothing.str(), "");
  DataConfig by_size;
  base::SettingsTable other;
  declare_settings(other, by_size);
  other.load_toml(content_of(toml), "written");
  EXPECT_EQ(by_size.temperature, 1) << "weights of 1 times the number of tokens";
  EXPECT_EQ(by_size.sources[0].weight, by_size.sources[1].weight);
}

TEST_F(ImportBlend, wrong_calls_write_nothing) {
  std::ostringstream out;
  const auto toml = (folder / "out.toml").string();
  expect_error<DataError>(
      [&] {
        run_data_import_blend({.data_path = {"1", a, "2", a + "x"}, .output = toml}, out);
      },
      {"there is no", "ax.idx", ".bin and an .idx"});
  expect_error<base::UsageError>([&] { run_data_import_blend({.output = toml}, out); }, {"name one of"});
  expect_error<base::UsageError>([&] { run_data_import_blend({.data_path = {a}, .nemo = "x", .output = toml}, out); }, {"name one of"});
  expect_error<DataError>([&] { run_data_import_blend({.valid_data_path = {a}, .output = toml}, out); },
                          {"--train-data-path: there are no"});
  expect_error<base::FileError>([&] { run_data_import_blend({.nemo = (folder / "none").string()}, out); }, {"none"});
  const auto large = folder.write("large", std::string((4 << 20) + 1, ' ')).string();
  expect_error<base::FileError>([&] { run_data_import_blend({.data_args_path = large, .output = toml}, out); }, {"large"});
  EXPECT_FALSE(fs::exists(toml));
  EXPECT_EQ(out.str(), "");
}

}  // namespace
}  // namespace ingot::data
