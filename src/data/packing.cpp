#include "data/packing.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "base/error.h"
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

  void fill(int64_t row, const Row& out) const override {
    const int64_t first = begin_of(row);
    dataset_.read(first, out.inputs);
    dataset_.read_targets(first + 1, out.targets);
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
  int64_t unit_tokens() const { return std::max(options_.unit_tokens, options_.seq_len); }
  int64_t begin_of(int64_t row) const { return slice_.begin + row / unit_rows() * unit_tokens() + row % unit_rows() * options_.seq_len; }

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
  // With rows to spare fewer documents are cut; with larger chunks too, but one row costs the packing of its chunk.
  static constexpr int64_t kChunkRows = 256, kSpare = 256, kFewestUnits = 64, kFewestUnitRows = 8;

  BestFitPacking(const IndexedDataset& dataset, Slice slice, const PackingOptions& options)
      : dataset_(dataset), slice_(slice), options_(options) {
    const int64_t tokens = slice.end - slice.begin, longest = std::max(options.unit_tokens, options.seq_len);
    // Units that several lengths share are what a phase may leave out: a small dataset has more of them.
    const int64_t wished =
        options.unit_tokens > 0 ? std::clamp(tokens / kFewestUnits, kFewestUnitRows * longest, kChunkRows * longest) : kChunkRows * longest;
    chunks_ = std::max<int64_t>(1, (tokens + wished - 1) / wished);
    const int64_t largest = (tokens + chunks_ - 1) / chunks_;
    chunk_rows_ = (largest + largest / kSpare + options.seq_len - 1) / options.seq_len;
    if (!has_target())
      throw DataError("{}: its {} tokens hold no document of two tokens or more: there is nothing to learn", dataset.prefix().string(),
                      tokens);
  }

  int64_t rows() const override { return chunks_ * chunk_rows_; }
  int64_t unit_rows() const override { return chunk_rows_; }

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

  std::vector<Slice> pieces(int64_t row) const override {
    std::vector<Slice> pieces;
    for (const Piece& piece : pieces_in(row)) pieces.push_back({piece.begin, piece.begin + piece.length});
    return pieces;
  }

 private:
  std::vector<Piece> pieces_in(int64_t row) const { return (*packed_chunk(row / chunk_rows_))[static_cast<size_t>(row % chunk_rows_)]; }

  size_t place(const Piece& piece, size_t at, const Row& out) const {
    const auto length = static_cast<size_t>(piece.length);
    const size_t targets = piece.has_next ? length : length - 1;
    dataset_.read(piece.begin, out.inputs.subspan(at, length));
    dataset_.read_targets(piece.begin + 1, out.targets.subspan(at, targets));
    if (targets < length) out.targets[at + targets] = kIgnoredTarget;
    const auto starts = out.document_starts.subspan(at, length);
    std::fill(starts.begin(), starts.end(), static_cast<int32_t>(at));
    return at + length;
  }

  // Without resets the row is one context: a document's last token is followed by the next document's first.
  void join_documents(const std::vector<Piece>& pieces, const Row& out) const {
    std::fill(out.document_starts.begin(), out.document_starts.end(), 0);
    size_t at = 0;
    for (size_t p = 0; p + 1 < pieces.size(); ++p) {
      at += static_cast<size_t>(pieces[p].length);
      if (!pieces[p].has_next && dataset_.is_learned(pieces[p + 1].begin)) out.targets[at - 1] = out.inputs[at];
    }
  }

  // Ends at the first document of two tokens, which is nearly always the first.
  bool has_target() const {
    if (slice_.begin >= slice_.end) return false;
    for (int64_t document = dataset_.document_at(slice_.begin);
         document < dataset_.documents() && dataset_.document_begin(document) < slice_.end; ++document)
      if (std::min(dataset_.document_begin(document + 1), slice_.end) - std::max(dataset_.document_begin(document), slice_.begin) >= 2)
        return true;
    return false;
  }

  int64_t chunk_begin(int64_t chunk) const {
    const int64_t tokens = slice_.end - slice_.begin;
    return slice_.begin + tokens / chunks_ * chunk + std::min(chunk, tokens % chunks_);
  }

  std::vector<Piece> pieces_of(int64_t chunk) const {
    std::vector<Piece> pieces;
    const int64_t begin = chunk_begin(chunk), end = chunk_begin(chunk + 1);
    if (begin >= end) return pieces;
    for (int64_t document = dataset_.document_at(begin); document < dataset_.documents() && dataset_.document_begin(document) < end;
         ++document) {
      int64_t at = std::max(dataset_.document_begin(document), begin);
      const int64_t document_end = std::min(dataset_.document_begin(document + 1), slice_.end), stop = std::min(document_end, end);
      for (int64_t length = 0; at < stop && document_end - at >= 2; at += length) {  // a last token alone has nothing to predict
        length = std::min(stop - at, options_.seq_len);
        pieces.push_back({at, static_cast<int32_t>(length), at + length < document_end});
      }
    }
    return pieces;
  }

  PackedChunk pack(int64_t chunk) const {
    auto pieces = pieces_of(chunk);
    std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.length > b.length; });
    PackedChunk rows;
    std::multimap<int64_t, size_t> room;  // free tokens to row; equal ones in the order of insertion
    // Puts as much of the piece as there is room for into that row, and returns how much.
    const auto put = [&](std::multimap<int64_t, size_t>::iterator into, const Piece& piece) {
      const auto [left, row] = *into;
      room.erase(into);
      const auto length = static_cast<int32_t>(std::min<int64_t>(piece.length, left));
      rows[row].push_back({piece.begin, length, piece.has_next || length < piece.length});
      if (left > length) room.emplace(left - length, row);
      return length;
    };
    std::vector<Piece> homeless;
    for (const Piece& piece : pieces) {
      auto best = room.lower_bound(piece.length);
      if (best == room.end() && static_cast<int64_t>(rows.size()) < chunk_rows_) {
        best = room.emplace(options_.seq_len, rows.size());
        rows.emplace_back();
      }
      if (best != room.end()) put(best, piece);
      else homeless.push_back(piece);
    }
    for (Piece piece : homeless) {
      while (piece.length > 0) {
        const int32_t length = put(std::prev(room.end()), piece);
        piece.begin += length;
        piece.length -= length;
      }
    }
    spread(rows);
    return rows;
  }

  // Opens the rows that were not needed, with what lies in others: no row is without a document unless there are too few.
  void spread(PackedChunk& rows) const {
    size_t from = 0;
    while (static_cast<int64_t>(rows.size()) < chunk_rows_) {
      while (from < rows.size() && rows[from].size() < 2) ++from;
      std::vector<Piece> moved;
      if (from < rows.size()) {
        moved.push_back(rows[from].back());
        rows[from].pop_back();
      }
      rows.push_back(std::move(moved));
    }
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
  int64_t chunks_ = 0, chunk_rows_ = 0;
  mutable std::mutex mutex_;
  mutable std::array<Cached, 64> cache_;
};

}  // namespace

// 2 of best_fit: chunks of equally many tokens and rows; 1: of 1,024 documents, with as many rows as they needed.
int64_t row_version(const std::string& name) { return name == "best_fit" ? 2 : 1; }

std::unique_ptr<Packing> make_packing(const std::string& name, const IndexedDataset& dataset, Slice slice, const PackingOptions& options) {
  if (options.seq_len < 1) throw base::ConfigError("data.seq_len = {} must be at least 1", options.seq_len);
  if (name == "stream") return std::make_unique<StreamPacking>(dataset, slice, options);
  if (name == "best_fit") return std::make_unique<BestFitPacking>(dataset, slice, options);
  if (name == "pairs") return make_pair_packing(dataset, slice, options);
  throw base::ConfigError("data.packing = '{}' is not known: choose stream, best_fit or pairs", name);
}

}  // namespace ingot::data
