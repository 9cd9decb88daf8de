#include "data/document_rows.h"

#include <map>
#include <random>

#include "data/loader.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

std::vector<int> some_lengths(uint32_t seed, size_t count, int longest) {
  std::mt19937 random(seed);
  std::vector<int> lengths;
  for (size_t i = 0; i < count; ++i) lengths.push_back(std::uniform_int_distribution<int>(0, longest)(random));
  return lengths;
}

// Ids are positions: what a row holds says where it is from.
TEST(DocumentRows, are_the_documents_in_their_order_and_every_pair_of_neighbours_is_predicted_once) {
  const TemporaryFolder folder;
  for (const uint32_t seed : {1U, 2U}) {
    const auto lengths = some_lengths(seed, 300, seed == 1 ? 20 : 90);
    const IndexedDataset dataset(counting_dataset(folder, "d" + std::to_string(seed), lengths));
    const Slice slice{seed == 1 ? 0 : 13, dataset.tokens() - (seed == 1 ? 0 : 7)};
    const auto rows = make_packing("documents", dataset, slice, {.seq_len = 16, .pad_id = 100'000});
    std::map<int64_t, int> predicted;
    int64_t last = -1;
    for (int64_t r = 0; r < rows->rows(); ++r) {
      std::vector<int32_t> inputs(16), targets(16), starts(16);
      const int64_t tokens = rows->fill(r, {inputs, targets, starts});
      ASSERT_EQ(rows->pieces(r).size(), 1U);
      EXPECT_EQ(rows->pieces(r)[0].end - rows->pieces(r)[0].begin, tokens);
      EXPECT_GT(inputs[0], last);
      for (int64_t s = 0; s < 16; ++s) {
        const auto at = static_cast<size_t>(s);
        EXPECT_EQ(inputs[at] == 100'000, s >= tokens);
        EXPECT_EQ(starts[at], s < tokens ? 0 : tokens);
        if (targets[at] == kIgnoredTarget) continue;
        ASSERT_LT(s, tokens);
        EXPECT_EQ(targets[at], inputs[at] + 1);
        EXPECT_EQ(dataset.document_at(targets[at]), dataset.document_at(inputs[0]));
        ++predicted[targets[at]];
      }
      last = inputs[static_cast<size_t>(tokens - 1)];
    }
    for (int64_t token = slice.begin + 1; token < slice.end; ++token)
      EXPECT_EQ(predicted[token], dataset.document_at(token) == dataset.document_at(token - 1) ? 1 : 0) << token;
  }
}

TEST(DocumentRows, are_refused_without_a_target_and_for_phases_of_several_lengths) {
  const TemporaryFolder folder;
  const IndexedDataset lone(counting_dataset(folder, "lone", {1, 0, 1})), dataset(counting_dataset(folder, "d", {8, 9}));
  expect_error<base::DataError>([&] { make_packing("documents", lone, {0, 2}, {.seq_len = 4}); }, {"lone", "nothing to learn"});
  expect_error<base::ConfigError>(
      [&] {
        make_packing("documents", dataset, {0, 17}, {.seq_len = 4, .unit_tokens = 8});
      },
      {"\"documents\"", "one length"});
}

class VariableRows : public ::testing::TestWithParam<const char*> {
 protected:
  VariableRows() {
    const auto lengths = some_lengths(5, 400, 30);
    fixed.sources = {{.path = counting_dataset(folder, "a", lengths).string(), .weight = 2},
                     {.path = counting_dataset(folder, "b", some_lengths(6, 100, 50)).string(), .weight = 1}};
    fixed.seq_len = 24;
    fixed.packing = GetParam();
    variable = fixed;
    variable.rows = "variable";
  }
  TemporaryFolder folder;
  DataConfig fixed, variable;
};

TEST_P(VariableRows, are_the_fixed_ones_without_their_padding) {
  const Loader padded(fixed, Split::train, {.pad_id = 70'000}), loader(variable, Split::train, {.pad_id = 70'000});
  Batch batch;  // used again
  for (int64_t first = 0; first < 100; first += 20) {
    const auto expected = padded.batch(first, 20);
    loader.fill(first, 20, batch);
    ASSERT_EQ(batch.row_begins.size(), 21U);
    EXPECT_EQ(batch.inputs.size(), static_cast<size_t>(batch.row_begins.back()));
    for (size_t row = 0; row < 20; ++row) {
      const auto begin = batch.row_begins[row], tokens = batch.row_begins[row + 1] - begin;
      ASSERT_GT(tokens, 0);
      for (int64_t s = 0; s < 24; ++s) {
        const auto at = row * 24 + static_cast<size_t>(s), here = static_cast<size_t>(begin + s);
        if (s >= tokens) {
          EXPECT_EQ(expected.inputs[at], 70'000);
          continue;
        }
        ASSERT_EQ(batch.inputs[here], expected.inputs[at]);
        EXPECT_EQ(batch.targets[here], expected.targets[at]);
        EXPECT_EQ(batch.document_starts[here], expected.document_starts[at] + begin);
      }
    }
  }
}

// As many ranks as there are, any batches, processes that end and start: each row is given out once, and it is the same one.
TEST_P(VariableRows, are_conserved_when_ranks_come_and_go) {
  constexpr int64_t kSamples = 90;
  const auto rows_of = [](const Batch& batch) {
    std::vector<std::vector<int32_t>> rows;
    for (size_t row = 0; row + 1 < batch.row_begins.size(); ++row)
      rows.emplace_back(batch.inputs.begin() + batch.row_begins[row], batch.inputs.begin() + batch.row_begins[row + 1]);
    return rows;
  };
  const auto alone = rows_of(Loader(variable, Split::train).batch(0, kSamples));
  std::mt19937 random(8);
  const auto any = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  for (int history = 0; history < 10; ++history) {
    std::vector<std::vector<int32_t>> rows;
    std::string state;
    for (int64_t step = 0, samples = 0; samples < kSamples;) {
      const Loader loader(variable, Split::train);
      if (!state.empty()) loader.check_resumable(LoaderState::from_json(state));
      const int64_t ranks = any(1, 5), batch = any(1, 12);
      for (int64_t steps = any(1, 5); steps > 0 && samples < kSamples; --steps, ++step) {
        const int64_t count = std::min(batch, kSamples - samples);
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const auto [first, own] = share_of(samples, count, rank, ranks);
          for (auto& row : rows_of(loader.batch(first, own))) rows.push_back(std::move(row));
        }
        samples += count;
      }
      state = loader.state(step, samples).to_json();
    }
    EXPECT_EQ(rows, alone);
  }
}

INSTANTIATE_TEST_SUITE_P(, VariableRows, ::testing::Values("documents", "best_fit"));

}  // namespace
}  // namespace ingot::data
