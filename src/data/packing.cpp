#include "data/packing.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "base/error.h"

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
          dataset.prefix().string(), slice.end - slice.begin, options.seq_len);
  }

  int64_t rows() const override { return (slice_.end - slice_.begin - 1) / options_.seq_len; }

  void fill(int64_t row, const Row& out) const override {
    const int64_t first = slice_.begin + row * options_.seq_len;
    dataset_.read(first, out.inputs);
    dataset_.read(first + 1, out.targets);
    std::fill(out.document_starts.begin(), out.document_starts.end(), 0);
    if (!options_.reset_documents) return;
    // Walk the documents that begin inside the row, or right behind it: their first token is nobody's target.
    for (int64_t document = dataset_.document_at(first) + 1; document < dataset_.documents(); ++document) {
      const int64_t start = dataset_.document_begin(document) - first;
      if (start > options_.seq_len) break;
      if (start < 1) continue;
      out.targets[static_cast<size_t>(start - 1)] = kIgnoredTarget;
      std::fill(out.document_starts.begin() + start, out.document_starts.end(), static_cast<int32_t>(start));
    }
  }

  std::vector<Slice> reads(int64_t row) const override {
    const int64_t first = slice_.begin + row * options_.seq_len;
    return {{first, first + options_.seq_len + 1}};
  }

 private:
  const IndexedDataset& dataset_;
  Slice slice_;
  PackingOptions options_;
};

// A run of tokens of one document that one row holds.
struct Piece {
  int64_t begin = 0;      // in the token stream
  int32_t length = 0;     // inputs, at most seq_len
  bool has_next = false;  // the document goes on behind the piece: its last token has a target
};

using PackedChunk = std::vector<std::vector<Piece>>;  // pieces by row

class BestFitPacking : public Packing {
 public:
  static constexpr int64_t kChunkDocuments = 1024;

  BestFitPacking(const IndexedDataset& dataset, Slice slice, const PackingOptions& options)
      : dataset_(dataset), slice_(slice), options_(options) {
    if (slice.begin < slice.end) {
      first_document_ = dataset.document_at(slice.begin);
      end_document_ = dataset.document_at(slice.end - 1) + 1;
    }
    const int64_t chunks = (end_document_ - first_document_ + kChunkDocuments - 1) / kChunkDocuments;
    first_row_.push_back(0);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) first_row_.push_back(first_row_.back() + static_cast<int64_t>(pack(chunk).size()));
    if (rows() < 1)
      throw DataError("{}: its {} tokens hold no document of two tokens or more: there is nothing to learn", dataset.prefix().string(),
                      slice.end - slice.begin);
  }

  int64_t rows() const override { return first_row_.back(); }

  void fill(int64_t row, const Row& out) const override {
    const auto pieces = pieces_in(row);
    size_t at = 0;
    for (const Piece& piece : pieces) at = place(piece, at, out);
    std::fill(out.inputs.begin() + static_cast<std::ptrdiff_t>(at), out.inputs.end(), options_.pad_id);
    std::fill(out.targets.begin() + static_cast<std::ptrdiff_t>(at), out.targets.end(), kIgnoredTarget);
    std::fill(out.document_starts.begin() + static_cast<std::ptrdiff_t>(at), out.document_starts.end(), static_cast<int32_t>(at));
    if (!options_.reset_documents) join_documents(pieces, out);
  }

  std::vector<Slice> reads(int64_t row) const override {
    std::vector<Slice> reads;
    for (const Piece& piece : pieces_in(row)) {
      const Slice read{piece.begin, piece.begin + piece.length + (piece.has_next ? 1 : 0)};
      if (!reads.empty() && read.begin <= reads.back().end && read.begin >= reads.back().begin)
        reads.back().end = std::max(reads.back().end, read.end);
      else reads.push_back(read);
    }
    return reads;
  }

 private:
  std::vector<Piece> pieces_in(int64_t row) const {
    const auto above = std::upper_bound(first_row_.begin(), first_row_.end(), row);
    const int64_t chunk = above - first_row_.begin() - 1;
    return (*packed_chunk(chunk))[static_cast<size_t>(row - first_row_[static_cast<size_t>(chunk)])];
  }

  size_t place(const Piece& piece, size_t at, const Row& out) const {
    const auto length = static_cast<size_t>(piece.length);
    const size_t targets = piece.has_next ? length : length - 1;
    dataset_.read(piece.begin, out.inputs.subspan(at, length));
    dataset_.read(piece.begin + 1, out.targets.subspan(at, targets));
    if (targets < length) out.targets[at + targets] = kIgnoredTarget;
    const auto starts = out.document_starts.subspan(at, length);
    std::fill(starts.begin(), starts.end(), static_cast<int32_t>(at));
    return at + length;
  }

  // Without resets the row is one context: a document's last token is followed by the next document's first.
  static void join_documents(const std::vector<Piece>& pieces, const Row& out) {
    std::fill(out.document_starts.begin(), out.document_starts.end(), 0);
    size_t at = 0;
    for (size_t p = 0; p + 1 < pieces.size(); ++p) {
      at += static_cast<size_t>(pieces[p].length);
      out.targets[at - 1] = pieces[p].has_next ? out.targets[at - 1] : out.inputs[at];
    }
  }

  std::vector<Piece> pieces_of(int64_t chunk) const {
    std::vector<Piece> pieces;
    const int64_t begin = first_document_ + chunk * kChunkDocuments, end = std::min(begin + kChunkDocuments, end_document_);
    for (int64_t document = begin; document < end; ++document) {
      int64_t at = std::max(dataset_.document_begin(document), slice_.begin);
      const int64_t stop = std::min(dataset_.document_begin(document + 1), slice_.end);
      for (int64_t length = 0; stop - at >= 2; at += length) {  // a last token alone has nothing to predict
        length = std::min(stop - at, options_.seq_len);
        pieces.push_back({at, static_cast<int32_t>(length), at + length < stop});
      }
    }
    return pieces;
  }

  PackedChunk pack(int64_t chunk) const {
    auto pieces = pieces_of(chunk);
    std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.length > b.length; });
    PackedChunk rows;
    std::multimap<int64_t, size_t> room;  // free tokens to row; equal ones in the order of insertion
    for (const Piece& piece : pieces) {
      auto best = room.lower_bound(piece.length);
      int64_t left = options_.seq_len - piece.length;
      size_t row = rows.size();
      if (best != room.end()) {
        left = best->first - piece.length;
        row = best->second;
        room.erase(best);
      } else {
        rows.emplace_back();
      }
      rows[row].push_back(piece);
      if (left >= 2) room.emplace(left, row);
    }
    return rows;
  }

  // The chunks used last, by number: a small dataset is packed once.
  std::shared_ptr<const PackedChunk> packed_chunk(int64_t chunk) const {
    Cached& slot = cache_[static_cast<size_t>(chunk) % cache_.size()];
    {
      const std::lock_guard lock(mutex_);
      if (slot.chunk == chunk) return slot.packed;
    }
    auto packed = std::make_shared<const PackedChunk>(pack(chunk));
    const std::lock_guard lock(mutex_);
    slot = {chunk, packed};
    return packed;
  }

  struct Cached {
    int64_t chunk = -1;
    std::shared_ptr<const PackedChunk> packed;
  };

  const IndexedDataset& dataset_;
  Slice slice_;
  PackingOptions options_;
  int64_t first_document_ = 0, end_document_ = 0;
  std::vector<int64_t> first_row_;  // of each chunk, and the number of rows
  mutable std::mutex mutex_;
  mutable std::array<Cached, 64> cache_;
};

}  // namespace

std::unique_ptr<Packing> make_packing(const std::string& name, const IndexedDataset& dataset, Slice slice, const PackingOptions& options) {
  if (options.seq_len < 1) throw base::ConfigError("data.seq_len = {} must be at least 1", options.seq_len);
  if (name == "stream") return std::make_unique<StreamPacking>(dataset, slice, options);
  if (name == "best_fit") return std::make_unique<BestFitPacking>(dataset, slice, options);
  throw base::ConfigError("data.packing = '{}' is not known: choose stream or best_fit", name);
}

}  // namespace ingot::data
