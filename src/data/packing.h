// How a slice of a token stream becomes rows of seq_len tokens. Every row can be made alone, in any order, by any thread.
//
// stream: row r is tokens [r·S, (r+1)·S) of the slice with the tokens after them as targets: documents lie back to back and
//   are cut where a row ends. Nothing is padded; up to S tokens at the end of the slice are left over.
// best_fit: documents are cut only when longer than S, into pieces of S. Best-fit decreasing packs the pieces of each 1,024
//   consecutive documents into rows; what stays free is padding. A table of one integer per 1,024 documents finds the rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"

namespace ingot::data {

inline constexpr int32_t kIgnoredTarget = -100;

/// One sample, each span of seq_len elements.
struct Row {
  std::span<int32_t> inputs, targets;  // targets[s]: the token after inputs[s], or kIgnoredTarget
  std::span<int32_t> document_starts;  // index in the row of the first token of the document of token s
};

/// Tokens [begin, end) of a dataset's stream.
struct Slice {
  int64_t begin = 0, end = 0;
};

struct PackingOptions {
  int64_t seq_len = 512;
  bool reset_documents = true;  // else document_starts are 0, and targets cross the borders of documents
  int32_t pad_id = 0;
};

class Packing {
 public:
  virtual ~Packing() = default;
  virtual int64_t rows() const = 0;
  /// Fills the row `row` in [0, rows()).
  virtual void fill(int64_t row, const Row& out) const = 0;
  /// The tokens of the dataset that fill() reads for a row, in the order in which it does; neighbouring or overlapping ones are one.
  virtual std::vector<Slice> reads(int64_t row) const = 0;
};

/// `name` is data.packing. The dataset must outlive the packing. Throws DataError when the slice gives no row.
std::unique_ptr<Packing> make_packing(const std::string& name, const IndexedDataset& dataset, Slice slice, const PackingOptions& options);

}  // namespace ingot::data
