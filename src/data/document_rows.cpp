#include "data/document_rows.h"

#include <algorithm>

#include "base/error.h"

namespace ingot::data {
namespace {

class DocumentRows : public Packing {
 public:
  DocumentRows(const IndexedDataset& dataset, Slice slice, const PackingOptions& options)
      : dataset_(dataset), slice_(slice), options_(options) {
    if (options.unit_tokens > 0)
      throw base::ConfigError(
          "data.packing = \"documents\": rows of another data.seq_len are other pieces of documents; give phases one length");
    if (slice.begin < slice.end) {
      first_ = dataset.document_at(slice.begin);
      end_ = dataset.document_at(slice.end - 1) + 1;
    }
    for (int64_t document = first_; document < end_; ++document) {
      if ((document - first_) % kBlock == 0) rows_before_.push_back(rows_);
      rows_ += rows_of(document);
      if (document % kReleasedDocuments == kReleasedDocuments - 1) dataset.release_pages();
    }
    if (rows_ == 0)
      throw base::DataError("{}: its {} tokens hold no document of two tokens or more: there is nothing to learn",
                            dataset.prefix().string(), slice.end - slice.begin);
  }

  int64_t rows() const override { return rows_; }
  int64_t unit_rows() const override { return 1; }

  int64_t fill(int64_t row, const Row& out) const override {
    const auto piece = piece_of(row);
    const auto length = static_cast<size_t>(piece.end - piece.begin), targets = piece.has_next ? length : length - 1;
    dataset_.read(piece.begin, out.inputs.first(length));
    dataset_.read_targets(piece.begin + 1, out.targets.first(targets));
    const auto behind = static_cast<std::ptrdiff_t>(length);
    std::fill(out.targets.begin() + static_cast<std::ptrdiff_t>(targets), out.targets.end(), kIgnoredTarget);
    std::fill(out.inputs.begin() + behind, out.inputs.end(), options_.pad_id);
    std::fill(out.document_starts.begin(), out.document_starts.begin() + behind, 0);
    std::fill(out.document_starts.begin() + behind, out.document_starts.end(), static_cast<int32_t>(length));
    return behind;
  }

  std::vector<Slice> reads(int64_t row) const override {
    const auto piece = piece_of(row);
    return {{piece.begin, piece.end + (piece.has_next ? 1 : 0)}};
  }

  std::vector<Slice> pieces(int64_t row) const override {
    const auto piece = piece_of(row);
    return {{piece.begin, piece.end}};
  }

 private:
  static constexpr int64_t kBlock = 64, kReleasedDocuments = int64_t{1} << 20;
  struct Piece {
    int64_t begin = 0, end = 0;
    bool has_next = false;  // the document goes on behind it
  };

  Slice part_of(int64_t document) const {
    return {std::max(dataset_.document_begin(document), slice_.begin), std::min(dataset_.document_begin(document + 1), slice_.end)};
  }

  // A last token alone has nothing to predict.
  int64_t rows_of(int64_t document) const {
    const Slice part = part_of(document);
    return part.end - part.begin < 2 ? 0 : (part.end - part.begin - 2) / options_.seq_len + 1;
  }

  Piece piece_of(int64_t row) const {
    const auto block = std::prev(std::upper_bound(rows_before_.begin(), rows_before_.end(), row));
    int64_t document = first_ + (block - rows_before_.begin()) * kBlock, before = *block;
    for (int64_t rows = rows_of(document); before + rows <= row; rows = rows_of(++document)) before += rows;
    const Slice part = part_of(document);
    const int64_t begin = part.begin + (row - before) * options_.seq_len, end = std::min(begin + options_.seq_len, part.end);
    return {begin, end, end < part.end};
  }

  const IndexedDataset& dataset_;
  Slice slice_;
  PackingOptions options_;
  int64_t first_ = 0, end_ = 0, rows_ = 0;  // documents, and their rows
  std::vector<int64_t> rows_before_;        // each 64th document
};

}  // namespace

std::unique_ptr<Packing> make_document_rows(const IndexedDataset& dataset, Slice slice, const PackingOptions& options) {
  return std::make_unique<DocumentRows>(dataset, slice, options);
}

}  // namespace ingot::data
