#include "data/best_fit.h"

#include <algorithm>
#include <bit>
#include <list>
#include <mutex>
#include <numeric>
#include <unordered_map>

#include "base/error.h"

namespace ingot::data {
namespace {

// Numbers below a bound, with the least one that is not below another in a few instructions: 64 bits of each level are one of the next.
class BitTree {
 public:
  explicit BitTree(size_t bound) {
    do {
      bound = (bound + 63) / 64;
      levels_.emplace_back(bound, 0);
    } while (bound > 1);
  }

  void insert(size_t number) {
    for (auto& level : levels_) {
      level[number / 64] |= uint64_t{1} << (number % 64);
      number /= 64;
    }
  }
  void erase(size_t number) {
    for (auto& level : levels_) {
      level[number / 64] &= ~(uint64_t{1} << (number % 64));
      if (level[number / 64] != 0) return;
      number /= 64;
    }
  }
  /// kNone where there is none.
  size_t least_from(size_t number) const {
    for (size_t l = 0; l < levels_.size(); ++l) {
      if (number / 64 >= levels_[l].size()) return kNone;
      const uint64_t word = levels_[l][number / 64] >> (number % 64);
      if (word != 0) {
        number += static_cast<size_t>(std::countr_zero(word));
        while (l-- > 0) number = number * 64 + static_cast<size_t>(std::countr_zero(levels_[l][number]));
        return number;
      }
      number = number / 64 + 1;
    }
    return kNone;
  }
  size_t largest() const {
    if (levels_.back()[0] == 0) return kNone;
    size_t number = 0;
    for (size_t l = levels_.size(); l-- > 0;) number = number * 64 + 63 - static_cast<size_t>(std::countl_zero(levels_[l][number]));
    return number;
  }

  static constexpr size_t kNone = SIZE_MAX;

 private:
  std::vector<std::vector<uint64_t>> levels_;
};

// Rows by the tokens that they have room for; those of equal room in the order in which they came to it.
class RowsByRoom {
 public:
  RowsByRoom(size_t rows, size_t seq_len) : rooms_(seq_len + 1), ends_(seq_len + 1, {kNone, kNone}), links_(rows, {kNone, kNone}) {}

  void insert(size_t room, uint32_t row) {
    auto& [first, last] = ends_[room];
    links_[row] = {last, kNone};
    (first == kNone ? first : links_[last].next) = row;
    last = row;
    rooms_.insert(room);
  }
  void erase(size_t room, uint32_t row) {
    const auto [before, next] = links_[row];
    (before == kNone ? ends_[room].first : links_[before].next) = next;
    (next == kNone ? ends_[room].last : links_[next].before) = before;
    if (ends_[room].first == kNone) rooms_.erase(room);
  }
  const BitTree& rooms() const { return rooms_; }
  uint32_t first_of(size_t room) const { return ends_[room].first; }
  uint32_t last_of(size_t room) const { return ends_[room].last; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Ends {
    uint32_t first, last;
  };
  struct Link {
    uint32_t before, next;
  };
  BitTree rooms_;
  std::vector<Ends> ends_;   // by room
  std::vector<Link> links_;  // by row
};

// Longest first, equal ones in their order.
std::vector<DocumentPiece> sorted_by_length(std::span<const DocumentPiece> pieces, int64_t seq_len) {
  std::vector<uint32_t> begins(static_cast<size_t>(seq_len) + 2, 0);
  const auto place_of = [&](const DocumentPiece& piece) { return static_cast<size_t>(seq_len) - piece.length; };
  for (const auto& piece : pieces) ++begins[place_of(piece) + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<DocumentPiece> sorted(pieces.size());
  for (const auto& piece : pieces) sorted[begins[place_of(piece)]++] = piece;
  return sorted;
}

class BestFit {
 public:
  BestFit(int64_t rows, int64_t seq_len)
      : rows_(static_cast<size_t>(rows)), seq_len_(static_cast<size_t>(seq_len)), open_(rows_, seq_len_) {}

  PackedChunk pack(std::span<const DocumentPiece> pieces) {
    placed_.reserve(pieces.size());
    row_of_.reserve(pieces.size());
    std::vector<DocumentPiece> homeless;
    for (const auto& piece : sorted_by_length(pieces, static_cast<int64_t>(seq_len_))) {
      const size_t room = open_.rooms().least_from(piece.length);
      if (room != BitTree::kNone) put(piece, room, open_.first_of(room));
      else if (opened_ < rows_)
        open_.insert(seq_len_, static_cast<uint32_t>(opened_)), put(piece, seq_len_, static_cast<uint32_t>(opened_++));
      else homeless.push_back(piece);
    }
    for (auto piece : homeless)
      while (piece.length > 0) {
        const size_t room = open_.rooms().largest();
        const uint32_t length = put(piece, room, open_.last_of(room));
        piece.offset += length;
        piece.length -= length & 0x7fffffff;
      }
    if (opened_ < rows_) spread();
    return by_row();
  }

 private:
  // As much of the piece as there is room for; returns how much.
  uint32_t put(const DocumentPiece& piece, size_t room, uint32_t row) {
    open_.erase(room, row);
    const auto length = static_cast<uint32_t>(std::min<size_t>(piece.length, room));
    placed_.push_back({piece.offset, piece.has_next != 0 || length < piece.length, length & 0x7fffffff});
    row_of_.push_back(row);
    if (room > length) open_.insert(room - length, row);
    return length;
  }

  // Opens the rows that were not needed, with what lies in others: no row is without a document unless there are too few.
  void spread() {
    std::vector<uint32_t> gives(opened_, 0), taker(opened_);  // pieces of each row but the first; where the next one goes
    for (const uint32_t row : row_of_) ++gives[row];
    auto next = static_cast<uint32_t>(opened_);
    for (size_t row = 0; row < opened_; ++row) {
      taker[row] = next;
      gives[row] = std::min(gives[row] - 1, static_cast<uint32_t>(rows_) - next);
      next += gives[row];
    }
    for (size_t i = row_of_.size(); i-- > 0;)  // a row's last piece first
      if (const uint32_t row = row_of_[i]; gives[row] > 0) row_of_[i] = taker[row]++, --gives[row];
  }

  PackedChunk by_row() const {
    std::vector<uint32_t> ends(rows_, 0);
    for (const uint32_t row : row_of_) ++ends[row];
    std::exclusive_scan(ends.begin(), ends.end(), ends.begin(), uint32_t{0});
    std::vector<DocumentPiece> pieces(placed_.size());
    for (size_t i = 0; i < placed_.size(); ++i) pieces[ends[row_of_[i]]++] = placed_[i];
    return {std::move(pieces), std::move(ends)};
  }

  size_t rows_, seq_len_, opened_ = 0;
  RowsByRoom open_;
  std::vector<DocumentPiece> placed_;
  std::vector<uint32_t> row_of_;  // of each that was placed
};

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
    if (largest > DocumentPiece::kLastOffset || options.seq_len >= DocumentPiece::kMostTokens)
      throw base::ConfigError("data.packing = \"best_fit\": chunks of {} tokens are more than 2^32: take a data.seq_len below {}", largest,
                              DocumentPiece::kLastOffset / kChunkRows);
    chunk_rows_ = (largest + largest / kSpare + options.seq_len - 1) / options.seq_len;
    if (!has_target())
      throw base::DataError("{}: its {} tokens hold no document of two tokens or more: there is nothing to learn",
                            dataset.prefix().string(), tokens);
  }

  int64_t rows() const override { return chunks_ * chunk_rows_; }
  int64_t unit_rows() const override { return chunk_rows_; }

  int64_t fill(int64_t row, const Row& out) const override {
    const auto pieces = pieces_in(row);
    size_t at = 0;
    for (const Piece& piece : pieces) at = place(piece, at, out);
    std::fill(out.inputs.begin() + static_cast<std::ptrdiff_t>(at), out.inputs.end(), options_.pad_id);
    std::fill(out.targets.begin() + static_cast<std::ptrdiff_t>(at), out.targets.end(), kIgnoredTarget);
    std::fill(out.document_starts.begin() + static_cast<std::ptrdiff_t>(at), out.document_starts.end(), static_cast<int32_t>(at));
    if (!options_.reset_documents) join_documents(pieces, out);
    return static_cast<int64_t>(at);
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
  // As DocumentPiece, in the token stream.
  struct Piece {
    int64_t begin = 0, length = 0;
    bool has_next = false;
  };

  std::vector<Piece> pieces_in(int64_t row) const {
    const int64_t chunk = row / chunk_rows_, begin = chunk_begin(chunk);
    const auto packed = packed_chunk(chunk);
    std::vector<Piece> pieces;
    for (const auto& piece : packed->row(row % chunk_rows_)) pieces.push_back({begin + piece.offset, piece.length, piece.has_next != 0});
    return pieces;
  }

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

  std::vector<DocumentPiece> pieces_of(int64_t chunk) const {
    std::vector<DocumentPiece> pieces;
    const int64_t begin = chunk_begin(chunk), end = chunk_begin(chunk + 1);
    if (begin >= end) return pieces;
    int64_t document_begin = 0;
    for (int64_t document = dataset_.document_at(begin), next = dataset_.document_begin(document);
         document < dataset_.documents() && next < end; ++document) {
      document_begin = next;
      next = dataset_.document_begin(document + 1);
      int64_t at = std::max(document_begin, begin);
      const int64_t document_end = std::min(next, slice_.end), stop = std::min(document_end, end);
      for (int64_t length = 0; at < stop && document_end - at >= 2; at += length) {  // a last token alone has nothing to predict
        length = std::min(stop - at, options_.seq_len);
        pieces.push_back({static_cast<uint32_t>(at - begin), at + length < document_end, static_cast<uint32_t>(length & 0x7fffffff)});
      }
    }
    return pieces;
  }

  // A small dataset is packed once.
  std::shared_ptr<const PackedChunk> packed_chunk(int64_t chunk) const {
    {
      const std::lock_guard lock(mutex_);
      if (auto kept = kept_chunk(chunk)) return kept;
    }
    auto packed = std::make_shared<const PackedChunk>(pack_best_fit(pieces_of(chunk), chunk_rows_, options_.seq_len));
    const std::lock_guard lock(mutex_);
    if (auto kept = kept_chunk(chunk)) return kept;  // by another thread
    kept_.push_front({chunk, packed});
    kept_at_[chunk] = kept_.begin();
    for (used_bytes_ += bytes_of(*packed); used_bytes_ > options_.kept_bytes && kept_.size() > 1; kept_.pop_back()) {
      used_bytes_ -= bytes_of(*kept_.back().packed);
      kept_at_.erase(kept_.back().chunk);
    }
    return packed;
  }

  std::shared_ptr<const PackedChunk> kept_chunk(int64_t chunk) const {
    const auto found = kept_at_.find(chunk);
    if (found == kept_at_.end()) return nullptr;
    kept_.splice(kept_.begin(), kept_, found->second);
    return kept_.front().packed;
  }

  // With what the list and the table of it take.
  static int64_t bytes_of(const PackedChunk& packed) { return packed.bytes() + 256; }

  struct Kept {
    int64_t chunk = 0;
    std::shared_ptr<const PackedChunk> packed;
  };

  const IndexedDataset& dataset_;
  Slice slice_;
  PackingOptions options_;
  int64_t chunks_ = 0, chunk_rows_ = 0;
  mutable std::mutex mutex_;
  mutable std::list<Kept> kept_;  // used last first
  mutable std::unordered_map<int64_t, std::list<Kept>::iterator> kept_at_;
  mutable int64_t used_bytes_ = 0;
};

}  // namespace

PackedChunk pack_best_fit(std::span<const DocumentPiece> pieces, int64_t rows, int64_t seq_len) {
  return BestFit(rows, seq_len).pack(pieces);
}

std::unique_ptr<Packing> make_best_fit_packing(const IndexedDataset& dataset, Slice slice, const PackingOptions& options) {
  return std::make_unique<BestFitPacking>(dataset, slice, options);
}

}  // namespace ingot::data
