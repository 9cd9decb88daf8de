#include "data/pair_packing.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "data/reference_scores.h"

namespace ingot::data {
namespace {

using base::DataError;

class PairPacking : public Packing {
 public:
  PairPacking(const IndexedDataset& dataset, Slice slice, const PackingOptions& options)
      : dataset_(dataset), options_(options), scores_(read_reference_scores(dataset)) {
    const auto name = dataset.prefix().string();
    if (options.unit_tokens > 0)
      throw base::ConfigError("data.packing = \"pairs\": rows of another data.seq_len hold other pairs; give phases one length");
    if (dataset.documents() % 2 != 0)
      throw DataError("{} holds {} documents, which are not pairs: make it with 'ingot data tokenize --chat --preferences'", name,
                      dataset.documents());
    constexpr int64_t kReleasedPairs = int64_t{1} << 20;
    int64_t left_out = 0, room = 0, longest = 0;
    for (int64_t pair = 0; pair < dataset.documents() / 2; ++pair) {
      if (pair % kReleasedPairs == kReleasedPairs - 1) dataset.release_pages();
      const int64_t begin = dataset.document_begin(2 * pair), end = dataset.document_begin(2 * pair + 2);
      if (begin < slice.begin || end > slice.end) continue;
      longest = std::max(longest, end - begin);
      if (end - begin > options.seq_len || begin == end) {
        ++left_out;
        continue;
      }
      if (row_ends_.empty() || end - begin > room) row_ends_.push_back(static_cast<int64_t>(pairs_.size())), room = options.seq_len;
      room -= end - begin;
      pairs_.push_back(pair);
      row_ends_.back() = static_cast<int64_t>(pairs_.size());
    }
    if (pairs_.empty())
      throw DataError("{}: no pair of documents fits into data.seq_len = {}; the longest has {} tokens", name, options.seq_len, longest);
    if (left_out > 0)
      base::log_warning("{}: {} of {} pairs are longer than data.seq_len = {} and left out; the longest has {} tokens", name, left_out,
                        left_out + static_cast<int64_t>(pairs_.size()), options.seq_len, longest);
  }

  int64_t rows() const override { return static_cast<int64_t>(row_ends_.size()); }
  int64_t unit_rows() const override { return 1; }

  int64_t fill(int64_t row, const Row& out) const override {
    std::fill(out.reference_margins.begin(), out.reference_margins.end(), std::numeric_limits<double>::quiet_NaN());
    size_t at = 0;
    for (const int64_t pair : pairs_of(row)) {
      const auto first = static_cast<int32_t>(at);
      out.reference_margins[at] = scores_[static_cast<size_t>(2 * pair)] - scores_[static_cast<size_t>(2 * pair + 1)];
      for (int64_t document = 2 * pair; document < 2 * pair + 2; ++document) at = place(document, first, at, out);
    }
    const auto behind = static_cast<std::ptrdiff_t>(at);
    std::fill(out.inputs.begin() + behind, out.inputs.end(), options_.pad_id);
    std::fill(out.targets.begin() + behind, out.targets.end(), kIgnoredTarget);
    std::fill(out.document_starts.begin() + behind, out.document_starts.end(), static_cast<int32_t>(at));
    std::fill(out.pair_starts.begin() + behind, out.pair_starts.end(), -1);
    return behind;
  }

  std::vector<Slice> reads(int64_t row) const override {
    std::vector<Slice> reads;
    for (const int64_t pair : pairs_of(row)) {
      const Slice read{dataset_.document_begin(2 * pair), dataset_.document_begin(2 * pair + 2)};
      if (!reads.empty() && reads.back().end == read.begin) reads.back().end = read.end;
      else reads.push_back(read);
    }
    return reads;
  }

  std::vector<Slice> pieces(int64_t row) const override {
    std::vector<Slice> pieces;
    for (const int64_t pair : pairs_of(row))
      for (int64_t document = 2 * pair; document < 2 * pair + 2; ++document)
        if (dataset_.document_tokens(document) > 0)
          pieces.push_back({dataset_.document_begin(document), dataset_.document_begin(document + 1)});
    return pieces;
  }

 private:
  std::span<const int64_t> pairs_of(int64_t row) const {
    const int64_t begin = row == 0 ? 0 : row_ends_[static_cast<size_t>(row - 1)];
    return std::span(pairs_).subspan(static_cast<size_t>(begin), static_cast<size_t>(row_ends_[static_cast<size_t>(row)] - begin));
  }

  size_t place(int64_t document, int32_t first, size_t at, const Row& out) const {
    const int64_t begin = dataset_.document_begin(document);
    const auto length = static_cast<size_t>(dataset_.document_tokens(document));
    if (length == 0) return at;
    dataset_.read(begin, out.inputs.subspan(at, length));
    dataset_.read_targets(begin + 1, out.targets.subspan(at, length - 1));
    out.targets[at + length - 1] = kIgnoredTarget;
    std::ranges::fill(out.document_starts.subspan(at, length), static_cast<int32_t>(at));
    std::ranges::fill(out.pair_starts.subspan(at, length), first);
    return at + length;
  }

  const IndexedDataset& dataset_;
  PackingOptions options_;
  std::vector<double> scores_;     // of each document
  std::vector<int64_t> pairs_;     // that fit, in their order
  std::vector<int64_t> row_ends_;  // of each row, in pairs_
};

}  // namespace

std::unique_ptr<Packing> make_pair_packing(const IndexedDataset& dataset, Slice slice, const PackingOptions& options) {
  return std::make_unique<PairPacking>(dataset, slice, options);
}

}  // namespace ingot::data
