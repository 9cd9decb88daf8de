// How a slice of a token stream becomes rows of seq_len tokens. Every row can be made alone, in any order, by any thread.
//
// documents: a row is a document (data/document_rows.h).
// pairs: pairs of answers, each whole in its row (data/pair_packing.h).
// stream: row r is tokens [r·S, (r+1)·S) of the slice with the tokens after them as targets: documents lie back to back and
//   are cut where a row ends. Nothing is padded; up to S tokens at the end of the slice are left over.
// best_fit: documents stay whole where they fit. The slice is cut into chunks of equal size; best-fit decreasing packs the documents
//   of a chunk, in pieces of at most S, into the number of rows that its tokens need with 1/256 to spare. What finds no room whole is
//   cut; what stays free is padding. All chunks have equally many rows, so that a row is found without packing those before it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"

namespace ingot::data {

/// One sample, each span of seq_len elements.
struct Row {
  std::span<int32_t> inputs, targets;  // targets[s]: the token after inputs[s], or kIgnoredTarget
  std::span<int32_t> document_starts;  // index in the row of the first token of the document of token s
  // Of pairs alone, else empty; as in Batch (data/loader.h).
  std::span<int32_t> pair_starts{};
  std::span<double> reference_margins{};
};

/// Tokens [begin, end) of a dataset's stream.
struct Slice {
  int64_t begin = 0, end = 0;
};

struct PackingOptions {
  int64_t seq_len = 512;
  bool reset_documents = true;  // else document_starts are 0, and targets cross the borders of documents
  int32_t pad_id = 0;
  /// Not 0: rows are cut out of units of about so many tokens (stream: exactly), which lie in the same places whatever seq_len is.
  int64_t unit_tokens = 0;
  int64_t kept_bytes = int64_t{64} << 20;  // best_fit: of packed chunks
};

class Packing {
 public:
  virtual ~Packing() = default;
  virtual int64_t rows() const = 0;
  /// Rows of a unit, which follow one another; rows() is a multiple.
  virtual int64_t unit_rows() const = 0;
  /// Fills the row `row` in [0, rows()). Returns how many tokens stand in it: what is behind them is padding.
  virtual int64_t fill(int64_t row, const Row& out) const = 0;
  /// The tokens of the dataset that fill() reads for a row, in the order in which it does; neighbouring or overlapping ones are one.
  virtual std::vector<Slice> reads(int64_t row) const = 0;
  /// What stands in the row, in its order: runs of tokens of one document each. What is left of the row is padding.
  virtual std::vector<Slice> pieces(int64_t row) const = 0;
};

/// Version of the rows that a packing makes of the same tokens: a checkpoint of another one cannot be resumed in the middle of a phase.
int64_t row_version(const std::string& name);

/// `name` is data.packing. The dataset must outlive the packing. Throws DataError when the slice gives no row.
std::unique_ptr<Packing> make_packing(const std::string& name, const IndexedDataset& dataset, Slice slice, const PackingOptions& options);

}  // namespace ingot::data
