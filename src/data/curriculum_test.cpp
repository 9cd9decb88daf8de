#include "data/curriculum.h"

#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "data/loader.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

using base::ConfigError;
using base::DataError;

// The rows' places in the order of their difficulty; those of a unit are alike.
std::vector<int64_t> ranks_of(int64_t rows, int64_t unit_rows, const std::vector<double>& difficulty) {
  std::vector<int64_t> below(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t other = 0; other < rows; ++other)
      if (difficulty[static_cast<size_t>(other / unit_rows)] < difficulty[static_cast<size_t>(row / unit_rows)])
        ++below[static_cast<size_t>(row)];
  return below;
}

// The oracle: competence as the paper has it, at most a stretch ahead.
TEST(Curriculum, draws_each_row_once_and_none_that_is_harder_than_the_pace_allows) {
  std::mt19937 random(3);
  const auto upto = [&](int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random); };
  for (int round = 0; round < 60; ++round) {
    const int64_t rows = round < 5 ? round + 1 : upto(1, 700), unit_rows = upto(1, 3), units = (rows + unit_rows - 1) / unit_rows;
    Curriculum::Options options{
        .seed = static_cast<uint64_t>(round), .start = static_cast<double>(upto(0, 10)) / 10, .by_root = round % 2 == 1};
    options.samples = round % 3 == 0 ? 0 : upto(1, 2 * rows);
    std::vector<double> difficulty;
    for (int64_t unit = 0; unit < units; ++unit) difficulty.push_back(static_cast<double>(upto(-4, round % 4 == 0 ? 4 : 4000)));
    const Curriculum curriculum(rows, unit_rows, difficulty, options);
    const auto below = ranks_of(rows, unit_rows, difficulty);
    const auto last = static_cast<double>(options.samples > 0 ? std::min(options.samples, rows) : rows);
    std::set<int64_t> seen;
    for (int64_t sample = 0; sample < rows; ++sample) {
      const int64_t row = curriculum.row_of(sample);
      ASSERT_TRUE(row >= 0 && row < rows);
      seen.insert(row);
      const double time = std::min(1.0, static_cast<double>(sample + 1) / last), pace = options.by_root ? std::sqrt(time) : time;
      const double step = static_cast<double>(sample) + last / Curriculum::kStretches + 2;  // a row for each sample of the stretch
      const double allowed = std::max(step, (options.start + (1 - options.start) * pace) * static_cast<double>(rows) + 1);
      ASSERT_LE(static_cast<double>(curriculum.pool_at(sample)), allowed) << "sample " << sample << " of " << rows;
      if (rows % unit_rows == 0) {
        ASSERT_LT(below[static_cast<size_t>(row)], curriculum.pool_at(sample)) << "sample " << sample;
      }
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(rows));
  }
}

TEST(Curriculum, goes_from_easy_to_hard_and_mixes_what_it_may_draw) {
  constexpr int64_t kRows = 20000;
  std::vector<double> difficulty(kRows);
  for (size_t row = 0; row < kRows; ++row) difficulty[row] = static_cast<double>(row * 7919 % kRows);
  const Curriculum curriculum(kRows, 1, difficulty, {.seed = 1, .start = 0.2});
  std::vector<double> means;
  for (int64_t tenth = 0; tenth < 10; ++tenth) {
    double sum = 0;
    for (int64_t i = 0; i < kRows / 10; ++i) sum += difficulty[static_cast<size_t>(curriculum.row_of(tenth * kRows / 10 + i))];
    means.push_back(sum / (kRows / 10.0));
    if (tenth > 0) {
      EXPECT_GT(means[static_cast<size_t>(tenth)], means[static_cast<size_t>(tenth - 1)]);
    }
  }
  // The first samples are a draw from the easiest fifth.
  double sum = 0;
  for (int64_t i = 0; i < 200; ++i) sum += difficulty[static_cast<size_t>(curriculum.row_of(i))];
  EXPECT_NEAR(sum / 200, 0.1 * kRows, 0.02 * kRows);
  EXPECT_EQ(curriculum.pool_at(0), kRows / 5);
}

// The order of the rows alone does not say which of them a sample may be.
TEST(Curriculum, description_knows_the_pools) {
  const std::vector<double> difficulty(1000, 1);
  const auto description = [&](double start) { return Curriculum(1000, 1, difficulty, {.seed = 1, .start = start}).description(); };
  const auto hash = [&](double start) { return description(start).substr(description(start).find("order")); };
  EXPECT_EQ(hash(0.2), hash(0.2));
  EXPECT_NE(hash(0.2), hash(0.3));
}

struct LoaderWithCurriculum : ::testing::Test {
  TemporaryFolder folder;
  DataConfig config;
  std::vector<int> lengths;
  void SetUp() override {
    for (int i = 0; i < 300; ++i) lengths.push_back(2 + i * 37 % 50);
    counting_dataset(folder, "a", lengths);
    counting_dataset(folder, "b", {3000}, 100000);
    config.sources = {{(folder / "a").string(), 3}, {(folder / "b").string(), 1}};
    config.sources[0].curriculum = "length";
    config.seq_len = 32;
    config.seed = 7;
  }
  // Of the first source.
  std::vector<int64_t> rows(const Loader& loader, int64_t samples) const {
    std::vector<int64_t> all;
    for (int64_t s = 0; s < samples; ++s)
      if (const auto origin = loader.origin(s); origin.source == 0) all.push_back(origin.pieces.at(0).begin);
    return all;
  }
};

// The oracle: squares of the lengths of the documents in the row, from the token ids.
TEST_F(LoaderWithCurriculum, rows_of_short_documents_come_first_and_all_come_once_an_epoch) {
  for (const char* packing : {"stream", "best_fit"}) {
    config.packing = packing;
    config.sources[0].curriculum_start = 0.05;
    const Loader loader(config, Split::train);
    const int64_t rows_of_a = loader.packing(0).rows();
    std::set<int64_t> seen;
    std::vector<double> lengths_of_rows;
    const auto batch = loader.batch(0, rows_of_a * 2);
    for (int64_t s = 0; s < batch.batch && static_cast<int64_t>(lengths_of_rows.size()) < rows_of_a; ++s) {
      if (batch.sources[static_cast<size_t>(s)] != 0) continue;
      std::map<int32_t, double> tokens;  // of each document
      for (int64_t i = 0; i < 32; ++i)
        if (packing == std::string("stream") || batch.inputs[static_cast<size_t>(s * 32 + i)] > 0)
          ++tokens[batch.document_starts[static_cast<size_t>(s * 32 + i)]];
      double squares = 0, all = 0;
      for (const auto& [start, count] : tokens) squares += count * count, all += count;
      lengths_of_rows.push_back(all > 0 ? squares / all : 99);
      seen.insert(loader.origin(s).pieces.empty() ? -s : loader.origin(s).pieces[0].begin);
    }
    EXPECT_GE(seen.size(), static_cast<size_t>(rows_of_a) - 1);
    const auto quarter = static_cast<std::ptrdiff_t>(rows_of_a / 4);
    const auto mean = [&](auto begin, auto end) { return std::accumulate(begin, end, 0.0) / static_cast<double>(end - begin); };
    EXPECT_LT(mean(lengths_of_rows.begin(), lengths_of_rows.begin() + quarter) * 1.2,
              mean(lengths_of_rows.end() - quarter, lengths_of_rows.end()))
        << packing;
  }
}

TEST_F(LoaderWithCurriculum, restarts_ranks_and_other_weights_change_no_draw) {
  const Loader whole(config, Split::train);
  const auto expected = rows(whole, 900);
  const auto in_epoch = static_cast<size_t>(whole.packing(0).rows());
  EXPECT_EQ(std::set<int64_t>(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(in_epoch)).size(), in_epoch);
  std::mt19937 random(5);
  for (int64_t first = 0; first < 900;) {  // restarts with other numbers of ranks
    const Loader again(config, Split::train);
    again.check_resumable(LoaderState::from_json(whole.state(first, first).to_json()));
    const int64_t count = std::min<int64_t>(900 - first, 1 + static_cast<int64_t>(random() % 200)),
                  ranks = 1 + static_cast<int64_t>(random() % 5);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto [begin, own] = share_of(first, count, rank, ranks);
      const auto got = again.batch(begin, own), all = whole.batch(begin, own);
      ASSERT_EQ(got.inputs, all.inputs);
      ASSERT_EQ(got.sources, all.sources);
    }
    first += count;
  }
  Loader changed(config, Split::train);
  changed.change_weights(101, {1, 5});
  const auto other = rows(changed, 900);
  EXPECT_TRUE(std::equal(other.begin(), other.end(), expected.begin())) << "the same rows, later";
  // The second epoch is that of a source without.
  config.sources[0].curriculum = "none";
  const auto without = rows(Loader(config, Split::train), 900);
  ASSERT_GT(without.size(), in_epoch + 50);
  EXPECT_TRUE(std::equal(without.begin() + static_cast<std::ptrdiff_t>(in_epoch), without.end(),
                         expected.begin() + static_cast<std::ptrdiff_t>(in_epoch)));
  EXPECT_NE(without[0], expected[0]);
}

// Regression: tokens were counted in rows of seq_len, which those of documents are not.
TEST_F(LoaderWithCurriculum, tokens_are_those_of_the_rows) {
  config.sources.resize(1);
  const auto curriculum = [&](int64_t tokens) {
    config.sources[0].curriculum_tokens = tokens;
    return Loader(config, Split::train).state(0, 0).sources[0].curriculum;
  };
  const auto until = [](int64_t sample) { return ::testing::HasSubstr(fmt::format(" until sample {},", sample)); };
  for (const char* packing : {"stream", "best_fit", "documents"}) {
    config.packing = packing;
    const Loader loader(config, Split::train);
    const int64_t rows = loader.packing(0).rows();
    int64_t tokens = 0;
    for (int64_t sample = 0; sample < rows; ++sample)
      for (const Slice& piece : loader.origin(sample).pieces) tokens += piece.end - piece.begin;
    EXPECT_THAT(curriculum(tokens / 3), until((rows * (tokens / 3) + tokens - 1) / tokens)) << packing;
    EXPECT_THAT(curriculum(1), until(1)) << packing;
    for (const int64_t all : {int64_t{0}, tokens, INT64_MAX}) EXPECT_THAT(curriculum(all), until(rows)) << packing;
    if (packing == std::string("stream")) {
      EXPECT_THAT(curriculum(32 * 50 + 1), until(51));
    }
  }
}

TEST_F(LoaderWithCurriculum, scores_order_rows_and_another_file_is_not_resumed_from) {
  std::string scores;
  for (size_t document = 0; document < lengths.size(); ++document) scores += fmt::format("{}\r\n", -static_cast<double>(document) / 3);
  config.sources[0].curriculum = "score";
  config.sources[0].curriculum_scores = folder.write("scores", scores).string();
  config.sources[0].curriculum_start = 0;
  config.sources[0].curriculum_tokens = 32 * 100;
  const Loader loader(config, Split::train);
  const auto drawn = rows(loader, 80);
  EXPECT_GT(drawn[0], 32 * static_cast<int64_t>(loader.packing(0).rows() * 9 / 10)) << "the last documents have the lowest score";
  const auto state = loader.state(1, 4);
  folder.write("scores", "-1000" + scores.substr(scores.find('\r')));
  expect_error<DataError>([&] { Loader(config, Split::train).check_resumable(state); }, {"the curriculum of", "order"});
  config.sources[0].curriculum = "none", config.sources[0].curriculum_scores.clear();
  expect_error<DataError>([&] { Loader(config, Split::train).check_resumable(state); }, {"the curriculum of"});
}

TEST_F(LoaderWithCurriculum, wrong_files_and_settings_are_named) {
  config.sources[0].curriculum = "score";
  const auto open = [&] { Loader(config, Split::train); };
  expect_error<ConfigError>(open, {"data.sources[0]", "curriculum_scores"});
  config.sources[0].curriculum_scores = (folder / "none").string();
  expect_error<DataError>(open, {"none cannot be read"});
  config.sources[0].curriculum_scores = folder.path().string();
  expect_error<DataError>(open, {"cannot be read"});
  const std::string most = [] {
    std::string all;
    for (int i = 0; i < 299; ++i) all += "1\n";
    return all;
  }();
  for (const auto& [text, words] :
       std::vector<std::pair<std::string, std::string>>{{most, "300: the source has 300 documents, and the file ends"},
                                                        {most + "1\n1\n", ":301: the source has 300"},
                                                        {most + "nan\n", ":300: \"nan\" is not a finite"},
                                                        {"1\n\n" + most, ":2: \"\" is not"},
                                                        {"1\n1e999\n", ":2:"},
                                                        {"1\n-1e39\n", ":2: \"-1e39\" is not a finite"},
                                                        {std::string("1\n2\0z\n", 6), ":2:"},
                                                        {"1\n" + std::string(1000, '7'), ":2: the line is too long"}}) {
    config.sources[0].curriculum_scores = folder.write("scores", text).string();
    expect_error<DataError>(open, {words});
  }
  config.sources[0].curriculum = "length";
  expect_error<ConfigError>(open, {"go together"});
  config.sources[0].curriculum_scores.clear();
  config.sources[0].unit_tokens = 64;
  expect_error<ConfigError>(open, {"has a curriculum", "reset_dataloader"});
}

}  // namespace
}  // namespace ingot::data
