#include "data/pair_packing.h"

#include <cmath>
#include <set>

#include "data/loader.h"
#include "data/reference_scores.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

// Token ids say where they lie in the stream.
fs::path scored_dataset(const TemporaryFolder& folder, const std::vector<int>& lengths) {
  const auto prefix = counting_dataset(folder, "pairs", lengths);
  std::vector<double> scores;
  for (size_t i = 0; i < lengths.size(); ++i) scores.push_back(-1.5 * static_cast<double>(i * i));
  write_reference_scores(IndexedDataset(prefix), scores);
  return prefix;
}

DataConfig config_of(const fs::path& prefix, int64_t seq_len) {
  DataConfig config;
  config.sources = {{.path = prefix.string()}};
  config.packing = "pairs";
  config.seq_len = seq_len;
  return config;
}

TEST(PairPacking, keeps_each_pair_whole_in_one_row_with_what_the_reference_says_of_it) {
  const TemporaryFolder folder;
  const std::vector<int> lengths = {3, 2, 4, 4, 2, 1, 5, 6, 9, 9, 1, 2};  // pairs of 5, 8, 3, 11, 18 (too long) and 3
  const Loader loader(config_of(scored_dataset(folder, lengths), 12), Split::train);
  EXPECT_EQ(loader.samples(), 4);  // 5 | 8 3 | 11 | 3
  const auto batch = loader.batch(0, 4);
  std::multiset<int> seen;
  for (size_t row = 0; row < 4; ++row)
    for (size_t at = row * 12; at < (row + 1) * 12; ++at) {
      const auto here = static_cast<int32_t>(at - row * 12);
      if (batch.pair_starts[at] < 0) {
        EXPECT_EQ(batch.targets[at], kIgnoredTarget);
        EXPECT_TRUE(std::isnan(batch.reference_margins[at]));
        continue;
      }
      EXPECT_EQ(std::isnan(batch.reference_margins[at]), batch.pair_starts[at] != here);
      if (batch.pair_starts[at] != here) continue;
      const int32_t first = batch.inputs[at];  // which document that is, its id says
      int document = 0, begin = 0;
      while (begin != first) begin += lengths[static_cast<size_t>(document++)];
      EXPECT_EQ(document % 2, 0);
      seen.insert(document);
      EXPECT_NEAR(batch.reference_margins[at], -1.5 * (document * document - (document + 1) * (document + 1)), 1e-12);
      const auto chosen = static_cast<size_t>(lengths[static_cast<size_t>(document)]);
      const size_t both = chosen + static_cast<size_t>(lengths[static_cast<size_t>(document + 1)]);
      for (size_t i = 0; i < both; ++i) {
        EXPECT_EQ(batch.inputs[at + i], first + static_cast<int32_t>(i));
        EXPECT_EQ(batch.pair_starts[at + i], here);
        EXPECT_EQ(batch.document_starts[at + i], here + static_cast<int32_t>(i < chosen ? 0 : chosen));
        const bool is_last = i + 1 == chosen || i + 1 == both;
        EXPECT_EQ(batch.targets[at + i], is_last ? kIgnoredTarget : batch.inputs[at + i] + 1);
      }
    }
  EXPECT_EQ(seen, (std::multiset<int>{0, 2, 4, 6, 10}));
}

TEST(PairPacking, pieces_are_the_answers_of_a_row) {
  const TemporaryFolder folder;
  const Loader loader(config_of(scored_dataset(folder, {3, 2, 4, 4, 2, 1}), 12), Split::train);
  for (int64_t sample = 0; sample < 2; ++sample) {
    const auto batch = loader.batch(sample, 1);
    size_t at = 0;
    const auto origin = loader.origin(sample);
    EXPECT_GE(origin.pieces.size(), 2U);
    for (const Slice& piece : origin.pieces)
      for (int64_t token = piece.begin; token < piece.end; ++token) EXPECT_EQ(batch.inputs[at++], token);
    for (; at < 12; ++at) EXPECT_EQ(batch.pair_starts[at], -1);
  }
}

TEST(PairPacking, says_what_is_missing) {
  const TemporaryFolder folder;
  const auto unscored = counting_dataset(folder, "unscored", {3, 2});
  expect_error<base::DataError>([&] { Loader(config_of(unscored, 12), Split::train); }, {"unscored.reference", "ingot data score"});
  const auto odd = counting_dataset(folder, "odd", {3, 2, 4});
  write_reference_scores(IndexedDataset(odd), std::vector<double>{-1, -2, -3});
  expect_error<base::DataError>([&] { Loader(config_of(odd, 12), Split::train); }, {"3 documents", "--preferences"});
  const auto few = counting_dataset(folder, "few", {3, 2});
  write_reference_scores(IndexedDataset(few), std::vector<double>{-1});
  expect_error<base::DataError>([&] { Loader(config_of(few, 12), Split::train); }, {"few.reference", "2 documents"});
  write_reference_scores(IndexedDataset(few), std::vector<double>{-1, std::nan("")});
  expect_error<base::DataError>([&] { Loader(config_of(few, 12), Split::train); }, {"document 1 is nan"});
  expect_error<base::DataError>([&] { Loader(config_of(scored_dataset(folder, {3, 2}), 4), Split::train); }, {"no pair", "5 tokens"});
  auto joined = config_of(scored_dataset(folder, {3, 2}), 12);
  joined.reset_documents = false;
  expect_error<base::ConfigError>([&] { Loader(joined, Split::train); }, {"data.reset_documents"});
}

}  // namespace
}  // namespace ingot::data
