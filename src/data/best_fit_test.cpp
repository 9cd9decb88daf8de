#include "data/best_fit.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "base/random.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

struct TokenRun {
  int64_t begin = 0, length = 0;
  bool operator==(const TokenRun&) const = default;
};
using Rows = std::vector<std::vector<TokenRun>>;

// docs/data-formats.md, "Rows", word by word: every row is looked at for every piece.
Rows rows_of_the_description(const std::vector<TokenRun>& pieces, int64_t count, int64_t seq_len) {
  Rows rows;
  std::vector<int64_t> room, since;  // since: when a row came to its room
  int64_t now = 0;
  std::vector<TokenRun> sorted;
  for (int64_t length = seq_len; length >= 1; --length)
    for (const auto& piece : pieces)
      if (piece.length == length) sorted.push_back(piece);
  const auto put = [&](size_t row, TokenRun piece) {
    piece.length = std::min(piece.length, room[row]);
    rows[row].push_back(piece);
    room[row] -= piece.length;
    since[row] = ++now;
    return piece.length;
  };
  std::vector<TokenRun> homeless;
  for (const auto& piece : sorted) {
    size_t best = rows.size();
    for (size_t row = 0; row < rows.size(); ++row)
      if (room[row] >= piece.length && (best == rows.size() || std::pair(room[row], since[row]) < std::pair(room[best], since[best])))
        best = row;
    if (best == rows.size() && static_cast<int64_t>(best) < count) rows.emplace_back(), room.push_back(seq_len), since.push_back(++now);
    if (best < rows.size()) put(best, piece);
    else homeless.push_back(piece);
  }
  for (TokenRun piece : homeless)
    while (piece.length > 0) {
      size_t most = 0;
      for (size_t row = 0; row < rows.size(); ++row)
        if (std::pair(room[row], since[row]) > std::pair(room[most], since[most])) most = row;
      const int64_t length = put(most, piece);
      piece.begin += length, piece.length -= length;
    }
  for (size_t from = 0; from < rows.size() && static_cast<int64_t>(rows.size()) < count;) {
    if (rows[from].size() < 2) {
      ++from;
      continue;
    }
    const TokenRun moved = rows[from].back();
    rows[from].pop_back();
    rows.push_back({moved});
  }
  rows.resize(static_cast<size_t>(count));
  return rows;
}

uint64_t draw(uint64_t stream, uint64_t index, uint64_t bound) {
  return static_cast<uint64_t>(base::uniform_at(stream, index) * static_cast<double>(bound));
}

TEST(BestFit, rows_are_those_of_the_description) {
  for (uint64_t trial = 0; trial < 200; ++trial) {
    const auto seq_len = static_cast<int64_t>(1 + draw(trial, 0, 200)), count = static_cast<int64_t>(1 + draw(trial, 1, 40));
    const uint64_t longest = 1 + draw(trial, 2, static_cast<uint64_t>(seq_len));
    std::vector<TokenRun> runs;
    std::vector<DocumentPiece> pieces;
    int64_t left = count * seq_len - static_cast<int64_t>(draw(trial, 3, static_cast<uint64_t>(count)));
    for (uint64_t i = 4; left > 0; ++i) {
      const auto length = std::min(left, static_cast<int64_t>(1 + draw(trial, i, longest)));
      runs.push_back({count * seq_len - left, length});
      pieces.push_back({static_cast<uint32_t>(runs.back().begin), i % 3 == 0, static_cast<uint32_t>(length)});
      left -= length;
      if (trial % 5 == 0 && i > 20) break;  // fewer pieces than rows
    }
    const auto expected = rows_of_the_description(runs, count, seq_len);
    const auto packed = pack_best_fit(pieces, count, seq_len);
    ASSERT_EQ(packed.rows(), count);
    for (int64_t row = 0; row < count; ++row) {
      std::vector<TokenRun> found;
      for (const auto& piece : packed.row(row)) {
        found.push_back({piece.offset, piece.length});
        const auto whole = std::prev(std::find_if(runs.begin(), runs.end(), [&](const TokenRun& run) { return run.begin > piece.offset; }));
        const bool is_cut = piece.offset + piece.length < whole->begin + whole->length;
        EXPECT_EQ(piece.has_next != 0, is_cut || pieces[static_cast<size_t>(whole - runs.begin())].has_next != 0);
      }
      ASSERT_EQ(found, expected[static_cast<size_t>(row)]) << "trial " << trial << " row " << row;
    }
  }
}

// Log-normal, as lengths of web documents are: half of them below 512 tokens.
std::vector<int> web_lengths(uint64_t count) {
  std::vector<int> lengths;
  for (uint64_t i = 0; i < count; ++i) {
    const double u = base::uniform_at(11, 2 * i), v = base::uniform_at(11, 2 * i + 1);
    const double normal = std::sqrt(-2 * std::log(1 - u)) * std::cos(2 * M_PI * v);
    lengths.push_back(std::clamp(static_cast<int>(512 * std::exp(1.17 * normal)), 2, 100'000));
  }
  return lengths;
}

// The whole data set at once, rows without end: no document that fits is cut.
double padding_of_whole_best_fit(const std::vector<int>& lengths, int64_t seq_len) {
  std::vector<int64_t> pieces;
  int64_t tokens = 0, rows = 0;
  for (int64_t length : lengths) {
    tokens += length;
    for (; length > 0; length -= std::min(length, seq_len)) pieces.push_back(std::min(length, seq_len));
  }
  std::sort(pieces.rbegin(), pieces.rend());
  std::multiset<int64_t> room;
  for (const int64_t piece : pieces) {
    auto best = room.lower_bound(piece);
    if (best == room.end()) best = room.insert(seq_len), ++rows;
    const int64_t left = *best - piece;
    room.erase(best);
    room.insert(left);
  }
  return 1 - static_cast<double>(tokens) / static_cast<double>(rows * seq_len);
}

// The same chunks and rows, documents as they come, each into the first row with room for it, the rest cut: how many of the documents that
// fit a row are cut.
double cut_by_first_fit(const IndexedDataset& dataset, const Packing& packing, int64_t seq_len) {
  int64_t cut = 0, all = 0;
  for (int64_t first = 0; first < packing.rows(); first += packing.unit_rows()) {
    std::map<int64_t, int64_t> documents;  // in the chunk, and how many of their tokens
    for (int64_t row = first; row < first + packing.unit_rows(); ++row)
      for (const Slice& piece : packing.pieces(row)) documents[dataset.document_at(piece.begin)] += piece.end - piece.begin;
    std::vector<int64_t> room(static_cast<size_t>(packing.unit_rows()), seq_len);
    for (const auto& [document, tokens] : documents) {
      for (int64_t left = tokens; left > 0; left -= std::min(left, seq_len)) {
        const int64_t piece = std::min(left, seq_len);
        const auto fits = std::find_if(room.begin(), room.end(), [&](int64_t free) { return free >= piece; });
        if (fits != room.end()) *fits -= piece;
        else cut += dataset.document_tokens(document) <= seq_len;
      }
      all += dataset.document_tokens(document) <= seq_len;
    }
  }
  return static_cast<double>(cut) / static_cast<double>(all);
}

struct Efficiency {
  double padding = 0, cut = 0;  // share of the places; of the documents that fit a row whole, borders of chunks apart
};

Efficiency efficiency_of(const IndexedDataset& dataset, const Packing& packing, int64_t seq_len) {
  std::map<std::pair<int64_t, int64_t>, int> parts;  // of documents that fit, by chunk
  int64_t placed = 0;
  for (int64_t row = 0; row < packing.rows(); ++row)
    for (const Slice& piece : packing.pieces(row)) {
      placed += piece.end - piece.begin;
      const int64_t document = dataset.document_at(piece.begin);
      if (dataset.document_tokens(document) <= seq_len) ++parts[{row / packing.unit_rows(), document}];
    }
  const auto cut = std::count_if(parts.begin(), parts.end(), [](const auto& part) { return part.second > 1; });
  return {1 - static_cast<double>(placed) / static_cast<double>(packing.rows() * seq_len),
          static_cast<double>(cut) / static_cast<double>(parts.size())};
}

TEST(BestFit, chunks_lose_little_against_the_whole_data_set_and_cut_less_than_first_fit) {
  const TemporaryFolder folder;
  const auto lengths = web_lengths(20000);
  const IndexedDataset dataset(counting_dataset(folder, "d", lengths));
  for (const int64_t seq_len : {512, 2048, 8192}) {
    const auto packing = make_packing("best_fit", dataset, {0, dataset.tokens()}, {.seq_len = seq_len});
    const double whole = padding_of_whole_best_fit(lengths, seq_len), first = cut_by_first_fit(dataset, *packing, seq_len);
    const auto own = efficiency_of(dataset, *packing, seq_len);
    RecordProperty(fmt::format("padding_{}", seq_len), fmt::format("{:.5f} (whole data set {:.5f})", own.padding, whole));
    RecordProperty(fmt::format("cut_{}", seq_len), fmt::format("{:.5f} (first fit {:.5f})", own.cut, first));
    EXPECT_LT(own.padding, whole + 0.0075) << seq_len;
    EXPECT_LT(own.cut, 0.006) << seq_len;
    EXPECT_LE(own.cut, first) << seq_len;
    if (seq_len == 512) {
      EXPECT_LT(own.cut, first / 2);
    }
  }
}

// Any rows, in any order, by any number of threads, from packings opened anew: what is kept changes nothing.
TEST(BestFit, rows_do_not_depend_on_what_was_asked_for_before) {
  const TemporaryFolder folder;
  const IndexedDataset dataset(counting_dataset(folder, "d", web_lengths(3000)));
  const Slice slice{17, dataset.tokens() - 5};
  const auto everything = [&](const Packing& packing) {
    std::vector<std::vector<int64_t>> rows;
    for (int64_t row = 0; row < packing.rows(); ++row) {
      rows.emplace_back();
      for (const Slice& piece : packing.pieces(row)) rows.back().insert(rows.back().end(), {piece.begin, piece.end});
    }
    return rows;
  };
  const auto expected = everything(*make_best_fit_packing(dataset, slice, {.seq_len = 256}));
  for (uint64_t history = 0; history < 20; ++history) {
    const auto packing =
        make_best_fit_packing(dataset, slice, {.seq_len = 256, .kept_bytes = static_cast<int64_t>(draw(history, 0, 20'000))});
    std::vector<std::jthread> ranks;
    std::atomic<int> wrong = 0;
    for (uint64_t rank = 0; rank < 1 + history % 4; ++rank)
      ranks.emplace_back([&, rank] {
        for (uint64_t i = 0; i < 100; ++i) {
          const auto row = draw(history * 7 + rank, i, expected.size());
          std::vector<int64_t> found;
          for (const Slice& piece : packing->pieces(static_cast<int64_t>(row))) found.insert(found.end(), {piece.begin, piece.end});
          wrong += found != expected[row];
        }
      });
    ranks.clear();
    EXPECT_EQ(wrong, 0) << "history " << history;
  }
}

// Regression: 64 chunks were kept however large they were.
TEST(BestFit, memory_stays_below_its_bound_whatever_the_size_of_the_data_set) {
  const TemporaryFolder folder;
  const IndexedDataset dataset(counting_dataset(folder, "d", std::vector<int>(400'000, 3)));
  const auto packing = make_best_fit_packing(dataset, {0, dataset.tokens()}, {.seq_len = 64, .kept_bytes = 1 << 20});
  const auto used = [] { return static_cast<int64_t>(mallinfo2().uordblks); };
  const int64_t before = used();
  if (before == 0) GTEST_SKIP() << "not this allocator";
  int64_t most = 0;
  for (int64_t row = 0; row < packing->rows(); row += 37) {
    static_cast<void>(packing->pieces(row));
    most = std::max(most, used() - before);
  }
  EXPECT_LT(most, (1 << 20) + 100'000) << "of " << dataset.documents() << " documents, whose pieces take 3.2 MB";
  EXPECT_GT(most, 1 << 19);
}

}  // namespace
}  // namespace ingot::data
