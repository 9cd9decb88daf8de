#include "data/packing.h"

#include <set>

#include "base/random.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

struct Filled {
  std::vector<int32_t> inputs, targets, starts;
};

Filled fill(const Packing& packing, int64_t row, int64_t seq_len) {
  const auto n = static_cast<size_t>(seq_len);
  Filled filled{std::vector<int32_t>(n), std::vector<int32_t>(n), std::vector<int32_t>(n)};
  packing.fill(row, {filled.inputs, filled.targets, filled.starts});
  return filled;
}

std::vector<int> random_lengths(int count, int largest) {
  std::vector<int> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back(static_cast<int>(base::uniform_at(3, static_cast<uint64_t>(i)) * (largest + 1)));
  return lengths;
}

TEST(StreamPacking, rows_are_the_stream_and_targets_stop_at_the_ends_of_documents) {
  const TemporaryFolder folder;
  const IndexedDataset dataset(counting_dataset(folder, "d", {3, 0, 1, 6, 5}));  // borders at 3, 3, 4, 10
  const auto packing = make_packing("stream", dataset, {0, 15}, {.seq_len = 5});
  EXPECT_EQ(packing->rows(), 2);  // 14 inputs have targets
  const Filled first = fill(*packing, 0, 5), second = fill(*packing, 1, 5);
  EXPECT_EQ(first.inputs, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(first.targets, (std::vector<int32_t>{1, 2, -100, -100, 5}));
  EXPECT_EQ(first.starts, (std::vector<int32_t>{0, 0, 0, 3, 4}));
  EXPECT_EQ(second.inputs, (std::vector<int32_t>{5, 6, 7, 8, 9}));
  EXPECT_EQ(second.targets, (std::vector<int32_t>{6, 7, 8, 9, -100}));
  EXPECT_EQ(second.starts, (std::vector<int32_t>{0, 0, 0, 0, 0}));
}

TEST(StreamPacking, without_resets_every_token_predicts_the_next) {
  const TemporaryFolder folder;
  const IndexedDataset dataset(counting_dataset(folder, "d", {3, 0, 1, 6, 5}));
  const auto packing = make_packing("stream", dataset, {2, 15}, {.seq_len = 4, .reset_documents = false});
  const Filled row = fill(*packing, 1, 4);
  EXPECT_EQ(row.inputs, (std::vector<int32_t>{6, 7, 8, 9}));
  EXPECT_EQ(row.targets, (std::vector<int32_t>{7, 8, 9, 10}));
  EXPECT_EQ(row.starts, (std::vector<int32_t>{0, 0, 0, 0}));
}

TEST(StreamPacking, too_little_text_is_refused_with_the_numbers) {
  const TemporaryFolder folder;
  const IndexedDataset dataset(counting_dataset(folder, "small", {5}));
  expect_error<base::DataError>(
      [&] {
        make_packing("stream", dataset, {0, 5}, {.seq_len = 5});
      },
      {"small", "5 tokens", "data.seq_len = 5"});
}

// Checks rows against the documents themselves: ids are positions, so each token says where it comes from.
void check_best_fit(const std::vector<int>& lengths, Slice slice, int64_t seq_len) {
  const TemporaryFolder folder;
  const IndexedDataset dataset(counting_dataset(folder, "d", lengths));
  std::vector<int32_t> document_of;
  for (size_t d = 0; d < lengths.size(); ++d)
    document_of.insert(document_of.end(), static_cast<size_t>(lengths[d]), static_cast<int32_t>(d));
  const auto packing = make_packing("best_fit", dataset, slice, {.seq_len = seq_len, .pad_id = 1'000'000});
  std::vector<int> seen(document_of.size(), 0);
  int64_t predicted = 0;
  for (int64_t r = 0; r < packing->rows(); ++r) {
    const Filled row = fill(*packing, r, seq_len);
    for (size_t s = 0; s < row.inputs.size(); ++s) {
      const auto token = static_cast<size_t>(row.inputs[s]);
      const auto start = static_cast<size_t>(row.starts[s]);
      if (token == 1'000'000) {
        EXPECT_EQ(row.targets[s], kIgnoredTarget);
        EXPECT_EQ(row.inputs[start], 1'000'000);
        continue;
      }
      ++seen.at(token);
      ASSERT_EQ(row.inputs[start] + static_cast<int32_t>(s - start), row.inputs[s]);
      ASSERT_EQ(document_of[static_cast<size_t>(row.inputs[start])], document_of[token]);
      const bool has_next = static_cast<int64_t>(token) + 1 < slice.end && document_of[token + 1] == document_of[token];
      ASSERT_EQ(row.targets[s], has_next ? row.inputs[s] + 1 : kIgnoredTarget);
      predicted += has_next;
    }
  }
  int64_t pairs = 0;
  for (int64_t t = 0; t < static_cast<int64_t>(seen.size()); ++t) {
    EXPECT_LE(seen[static_cast<size_t>(t)], t >= slice.begin && t < slice.end ? 1 : 0);
    pairs += t >= slice.begin && t + 1 < slice.end && document_of[static_cast<size_t>(t)] == document_of[static_cast<size_t>(t + 1)];
  }
  EXPECT_EQ(predicted, pairs) << "every pair of neighbours in a document is predicted exactly once";
}

TEST(BestFitPacking, every_pair_of_neighbours_in_a_document_is_predicted_exactly_once) {
  check_best_fit({3, 0, 1, 6, 5, 17, 8, 9, 2}, {0, 51}, 8);
  check_best_fit(random_lengths(3000, 40), {100, 50000}, 32);
}

TEST(BestFitPacking, documents_that_fit_stay_whole_and_rows_are_nearly_full) {
  const TemporaryFolder folder;
  const auto lengths = random_lengths(2000, 60);
  const IndexedDataset dataset(counting_dataset(folder, "d", lengths));
  const auto packing = make_packing("best_fit", dataset, {0, dataset.tokens()}, {.seq_len = 64});
  EXPECT_LT(packing->rows(), dataset.tokens() / 64 * 1.02 + 2);
  int64_t documents = 0, worth_it = 0;
  for (int64_t r = 0; r < packing->rows(); ++r) {
    const Filled row = fill(*packing, r, 64);
    for (size_t s = 0; s < 64; ++s) documents += row.starts[s] == static_cast<int32_t>(s) && row.targets[s] != kIgnoredTarget;
  }
  for (const int length : lengths) worth_it += length >= 2;
  // A few are cut, at the borders of chunks and where only parts of rows are left.
  EXPECT_GE(documents, worth_it) << "a document began nowhere";
  EXPECT_LE(documents, worth_it + worth_it / 50);
}

TEST(BestFitPacking, without_resets_a_document_is_followed_by_the_next_of_its_row) {
  const TemporaryFolder folder;
  const IndexedDataset dataset(counting_dataset(folder, "d", {4, 3}));
  const auto packing = make_packing("best_fit", dataset, {0, 7}, {.seq_len = 8, .reset_documents = false, .pad_id = 9});
  const Filled row = fill(*packing, 0, 8);
  EXPECT_EQ(row.inputs, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 9}));
  EXPECT_EQ(row.targets, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, -100, -100}));
  EXPECT_EQ(row.starts, std::vector<int32_t>(8, 0));
}

TEST(BestFitPacking, rows_made_alone_equal_rows_made_in_order) {
  const TemporaryFolder folder;
  const IndexedDataset dataset(counting_dataset(folder, "d", random_lengths(5000, 30)));
  const auto ordered = make_packing("best_fit", dataset, {0, dataset.tokens()}, {.seq_len = 32});
  for (int64_t r = ordered->rows() - 1; r >= 0; r -= 97) {
    const auto alone = make_packing("best_fit", dataset, {0, dataset.tokens()}, {.seq_len = 32});
    EXPECT_EQ(fill(*alone, r, 32).inputs, fill(*ordered, r, 32).inputs);
  }
}

// Regression: every rank packed the whole corpus when it started.
TEST(BestFitPacking, the_number_of_rows_is_known_without_packing_and_all_chunks_have_as_many) {
  const TemporaryFolder folder;
  const IndexedDataset dataset(counting_dataset(folder, "d", random_lengths(20000, 60)));
  const auto packing = make_packing("best_fit", dataset, {0, dataset.tokens()}, {.seq_len = 64});
  EXPECT_EQ(packing->rows() % packing->unit_rows(), 0);
  EXPECT_GT(packing->rows(), 10 * packing->unit_rows());
  int64_t without_targets = 0;
  for (int64_t r = 0; r < packing->rows(); ++r) {
    const Filled row = fill(*packing, r, 64);
    without_targets += std::all_of(row.targets.begin(), row.targets.end(), [](int32_t t) { return t == kIgnoredTarget; });
  }
  EXPECT_EQ(without_targets, 0);
}

TEST(Packings, units_hold_the_same_tokens_whatever_the_length_of_a_row) {
  const TemporaryFolder folder;
  const IndexedDataset dataset(counting_dataset(folder, "d", random_lengths(3000, 40)));
  for (const char* name : {"stream", "best_fit"}) {
    std::vector<std::vector<std::set<int64_t>>> units;  // by length, by unit
    for (const int64_t seq_len : {8, 12, 32}) {
      const auto packing = make_packing(name, dataset, {5, dataset.tokens()}, {.seq_len = seq_len, .pad_id = -7, .unit_tokens = 32});
      auto& of_length = units.emplace_back(static_cast<size_t>(packing->rows() / packing->unit_rows()));
      for (int64_t row = 0; row < packing->rows(); ++row) {
        auto& unit = of_length[static_cast<size_t>(row / packing->unit_rows())];
        const Filled filled = fill(*packing, row, seq_len);
        for (const int32_t id : filled.inputs) EXPECT_TRUE(id < 0 || unit.insert(id).second) << "twice in a unit";
      }
    }
    ASSERT_EQ(units[0].size(), units[2].size()) << name;
    ASSERT_EQ(units[1].size(), units[2].size()) << name;
    for (size_t u = 0; u < units[0].size(); ++u) {
      for (size_t other = 0; other < units[0].size(); ++other)
        EXPECT_TRUE(other == u || !units[2][other].contains(*units[0][u].begin())) << name;
      EXPECT_GE(*units[0][u].begin() + 1, *units[2][u].begin()) << name;
      EXPECT_LE(*units[0][u].rbegin(), *units[2][u].rbegin() + 1) << name;
    }
  }
}

// Ids are positions: what a row holds says what was read.
TEST(Packings, reads_are_the_tokens_that_come_out) {
  const TemporaryFolder folder;
  const IndexedDataset dataset(counting_dataset(folder, "d", random_lengths(300, 40)));
  for (const char* name : {"stream", "best_fit"}) {
    // Without resets a stream's row shows all it reads; best fit shows it in either case.
    const auto packing =
        make_packing(name, dataset, {7, dataset.tokens()}, {.seq_len = 24, .reset_documents = name[0] == 'b', .pad_id = -7});
    size_t pieces = 0;
    for (int64_t row = 0; row < packing->rows(); ++row) {
      const Filled filled = fill(*packing, row, 24);
      std::set<int64_t> seen, read;
      for (const auto& ids : {filled.inputs, filled.targets})
        for (const int32_t id : ids)
          if (id >= 0) seen.insert(id);
      for (const Slice& slice : packing->reads(row)) {
        ++pieces;
        for (int64_t token = slice.begin; token < slice.end; ++token) EXPECT_TRUE(read.insert(token).second) << "read twice";
      }
      EXPECT_EQ(seen, read) << name << " row " << row;
    }
    if (name[0] == 's') EXPECT_EQ(pieces, static_cast<size_t>(packing->rows()));
    else EXPECT_GT(pieces, static_cast<size_t>(packing->rows()));
  }
}

TEST(Packing, pieces_are_what_stands_in_a_row) {
  const TemporaryFolder folder;
  const IndexedDataset dataset(counting_dataset(folder, "d", random_lengths(300, 40)));
  for (const char* name : {"stream", "best_fit"}) {
    const auto packing = make_packing(name, dataset, {7, dataset.tokens()}, {.seq_len = 24, .pad_id = -7});
    for (int64_t row = 0; row < packing->rows(); ++row) {
      const Filled filled = fill(*packing, row, 24);
      size_t at = 0;
      for (const Slice& piece : packing->pieces(row)) {
        EXPECT_EQ(dataset.document_at(piece.begin), dataset.document_at(piece.end - 1));
        const auto start = static_cast<int32_t>(at);
        for (int64_t token = piece.begin; token < piece.end; ++token, ++at) {
          ASSERT_LT(at, 24U);
          EXPECT_EQ(filled.inputs[at], token) << name << " row " << row;
          EXPECT_EQ(filled.starts[at], start);
        }
      }
      for (; at < 24; ++at) EXPECT_EQ(filled.inputs[at], -7) << name << " row " << row;
    }
  }
}

// Whatever the packing: a target is the next token where that is of the same document and learned, and nothing else.
TEST(Packing, what_a_mask_leaves_out_is_no_target) {
  const TemporaryFolder folder;
  const auto prefix = folder / "masked";
  std::vector<bool> learned;
  {
    IndexedDatasetWriter writer(prefix, TokenType::uint16);
    for (int32_t token = 0; token < 600; ++token) {
      learned.push_back(token % 7 > 2);
      writer.append({&token, 1}, learned.back());
      if (token % 23 == 22) writer.end_document();
    }
    writer.finish();
  }
  const IndexedDataset dataset(prefix);
  for (const char* name : {"stream", "best_fit"}) {
    const auto packing = make_packing(name, dataset, {0, 600}, {.seq_len = 40});
    int64_t targets = 0;
    for (int64_t row = 0; row < packing->rows(); ++row) {
      const auto filled = fill(*packing, row, 40);
      for (size_t i = 0; i < 40; ++i) {
        if (filled.targets[i] < 0) continue;
        ++targets;
        EXPECT_EQ(filled.targets[i], filled.inputs[i] + 1);
        EXPECT_TRUE(learned[static_cast<size_t>(filled.targets[i])]) << filled.targets[i];
      }
      for (size_t i = 0; i + 1 < 40; ++i)
        if (filled.starts[i] == filled.starts[i + 1] && filled.inputs[i + 1] == filled.inputs[i] + 1 &&
            learned[static_cast<size_t>(filled.inputs[i + 1])]) {
          EXPECT_EQ(filled.targets[i], filled.inputs[i + 1]) << name;
        }
    }
    EXPECT_GT(targets, 250);
  }
}

}  // namespace
}  // namespace ingot::data
