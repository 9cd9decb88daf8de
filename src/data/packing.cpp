#include "data/packing.h"

#include <algorithm>

#include "base/error.h"
#include "data/best_fit.h"
#include "data/document_rows.h"
#include "data/pair_packing.h"

namespace ingot::data {
namespace {

using base::DataError;

class StreamPacking : public Packing {
 public:
  StreamPacking(const IndexedDataset& dataset, Slice slice, const PackingOptions& options)
      : dataset_(dataset), slice_(slice), options_(options) {
    if (rows() < 1)
      throw DataError(
          "{}: {} tokens are too few for a sample of data.seq_len = {}, which needs one more: take more text or a shorter sample",
          dataset.prefix().string(), slice.end - slice.begin, unit_tokens());
  }

  int64_t rows() const override { return (slice_.end - slice_.begin - 1) / unit_tokens() * unit_rows(); }
  int64_t unit_rows() const override { return unit_tokens() / options_.seq_len; }

  int64_t fill(int64_t row, const Row& out) const override {
    const int64_t first = begin_of(row);
    dataset_.read(first, out.inputs);
    dataset_.read_targets(first + 1, out.targets);
    std::fill(out.document_starts.begin(), out.document_starts.end(), 0);
    if (options_.reset_documents) separate_documents(first, out);
    return options_.seq_len;
  }

  std::vector<Slice> reads(int64_t row) const override {
    const int64_t first = begin_of(row);
    return {{first, first + options_.seq_len + 1}};
  }

  std::vector<Slice> pieces(int64_t row) const override {
    const int64_t first = begin_of(row), end = first + options_.seq_len;
    std::vector<Slice> pieces;
    for (int64_t document = dataset_.document_at(first); document < dataset_.documents() && dataset_.document_begin(document) < end;
         ++document) {
      const Slice piece{std::max(dataset_.document_begin(document), first), std::min(dataset_.document_begin(document + 1), end)};
      if (piece.begin < piece.end) pieces.push_back(piece);
    }
    return pieces;
  }

 private:
  void separate_documents(int64_t first, const Row& out) const {
    // Walk the documents that begin inside the row, or right behind it: their first token is nobody's target.
    for (int64_t document = dataset_.document_at(first) + 1; document < dataset_.documents(); ++document) {
      const int64_t start = dataset_.document_begin(document) - first;
      if (start > options_.seq_len) break;
      if (start < 1) continue;
      out.targets[static_cast<size_t>(start - 1)] = kIgnoredTarget;
      std::fill(out.document_starts.begin() + start, out.document_starts.end(), static_cast<int32_t>(start));
    }
  }

  int64_t unit_tokens() const { return std::max(options_.unit_tokens, options_.seq_len); }
  int64_t begin_of(int64_t row) const { return slice_.begin + row / unit_rows() * unit_tokens() + row % unit_rows() * options_.seq_len; }

  const IndexedDataset& dataset_;
  Slice slice_;
  PackingOptions options_;
};

}  // namespace

// 2 of best_fit: chunks of equally many tokens and rows; 1: of 1,024 documents, with as many rows as they needed.
int64_t row_version(const std::string& name) { return name == "best_fit" ? 2 : 1; }

std::unique_ptr<Packing> make_packing(const std::string& name, const IndexedDataset& dataset, Slice slice, const PackingOptions& options) {
  if (options.seq_len < 1) throw base::ConfigError("data.seq_len = {} must be at least 1", options.seq_len);
  if (name == "stream") return std::make_unique<StreamPacking>(dataset, slice, options);
  if (name == "best_fit") return make_best_fit_packing(dataset, slice, options);
  if (name == "documents") return make_document_rows(dataset, slice, options);
  if (name == "pairs") return make_pair_packing(dataset, slice, options);
  throw base::ConfigError("data.packing = '{}' is not known: choose stream, best_fit, documents or pairs", name);
}

}  // namespace ingot::data
