// Best-fit decreasing of the documents of one chunk into a given number of rows (docs/data-formats.md, "Rows"), and the packing made of it.
// A chunk is packed when one of its rows is asked for: nothing is computed when a dataset is opened, and nothing depends on which rows were
// asked for before. What was packed last is kept, up to a number of bytes.
#pragma once

#include "data/packing.h"

namespace ingot::data {

/// A run of tokens of one document, in eight bytes: chunks of short documents have millions of them.
struct DocumentPiece {
  static constexpr int64_t kMostTokens = int64_t{1} << 31, kLastOffset = (int64_t{1} << 32) - 1;
  uint32_t offset = 0;        // of the first token, from the beginning of the chunk
  uint32_t has_next : 1 = 0;  // the document goes on behind the piece: its last token has a target
  uint32_t length : 31 = 0;
};

/// The pieces of a chunk by row, each row's in the order in which they lie.
class PackedChunk {
 public:
  PackedChunk(std::vector<DocumentPiece> pieces, std::vector<uint32_t> row_ends)
      : pieces_(std::move(pieces)), row_ends_(std::move(row_ends)) {}

  int64_t rows() const { return static_cast<int64_t>(row_ends_.size()); }
  std::span<const DocumentPiece> row(int64_t row) const {
    const size_t begin = row == 0 ? 0 : row_ends_[static_cast<size_t>(row - 1)];
    return std::span(pieces_).subspan(begin, row_ends_[static_cast<size_t>(row)] - begin);
  }
  int64_t bytes() const {
    return static_cast<int64_t>(pieces_.capacity() * sizeof(DocumentPiece) + row_ends_.capacity() * sizeof(uint32_t));
  }

 private:
  std::vector<DocumentPiece> pieces_;
  std::vector<uint32_t> row_ends_;
};

/// `pieces`, each of at most `seq_len` tokens and together of at most rows * seq_len, into `rows` rows. Those that find no room whole are
/// cut.
PackedChunk pack_best_fit(std::span<const DocumentPiece> pieces, int64_t rows, int64_t seq_len);

/// Keeps at most options.kept_bytes of packed chunks, and always the last one: of a chunk of T tokens there are at most T/2 pieces.
std::unique_ptr<Packing> make_best_fit_packing(const IndexedDataset& dataset, Slice slice, const PackingOptions& options);

}  // namespace ingot::data
