// The merges of byte pair encoding, and the one loop that applies them: the pair of neighbours of the lowest rank becomes one token, the
// leftmost of equals first, until no pair of neighbours is left that has a merge. Immutable once made: any number of threads may use one.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/hugging_face/vocabulary.h"

namespace ingot::data {

struct BpeMerge {
  int32_t left = 0, right = 0;  // ids of the neighbours
  int32_t rank = 0;             // not negative; merges of the same rank have the same result
  int32_t result = 0;
};

class BpeMerges {
 public:
  BpeMerges() : BpeMerges(std::vector<BpeMerge>()) {}
  /// Of merges of the same pair the last counts. Throws DataError for more tokens (2^20) or merges (2^24) than an entry has bits for.
  explicit BpeMerges(const std::vector<BpeMerge>& merges);

  /// Merges in place and returns how many ids are left, at the beginning of `ids`.
  size_t apply(std::span<int32_t> ids) const;

 private:
  friend class ByteBpe;
  static constexpr int32_t kNone = INT32_MAX;  // as a rank: this pair has no merge
  static constexpr size_t kFew = 48;           // up to here a scan over all ranks is faster than a queue
  // A short word: its ids, and the rank of each with its right neighbour.
  struct Word {
    std::array<int32_t, kFew> ids, ranks;
    size_t pairs = 0;  // one less than there are ids
  };
  // An entry of the table is left, right and rank in 20, 20 and 24 bits: eight of them share a cache line.
  static constexpr int kIdBits = 20, kRankBits = 24;
  static constexpr uint64_t kEmpty = UINT64_MAX;

  static uint64_t pair_of(int32_t left, int32_t right) { return static_cast<uint64_t>(left) << kIdBits | static_cast<uint64_t>(right); }
  static uint64_t hash_of(uint64_t pair) { return (pair ^ pair >> 23) * 0x9E3779B97F4A7C15; }
  // Where the pair is, or the empty slot where it would be.
  size_t slot_of(uint64_t pair, uint64_t hash) const {
    size_t slot = hash >> shift_;
    while (entries_[slot] >> kRankBits != pair && entries_[slot] != kEmpty) slot = (slot + 1) & (entries_.size() - 1);
    return slot;
  }
  int32_t rank_of(int32_t left, int32_t right) const {
    if ((static_cast<uint32_t>(left) | static_cast<uint32_t>(right)) >> kIdBits) return kNone;  // of -1 too
    const uint64_t pair = pair_of(left, right), hash = hash_of(pair), bit = hash >> filter_shift_;
    if (!(filter_[bit / 64] >> bit % 64 & 1)) return kNone;
    const uint64_t entry = entries_[slot_of(pair, hash)];
    return entry == kEmpty ? kNone : static_cast<int32_t>(entry & ((1 << kRankBits) - 1));
  }
  void merge(Word& word) const;
  size_t apply_to_many(std::span<int32_t> ids) const;

  std::vector<uint64_t> entries_;  // open addressing
  // A bit for every pair that has a merge, eight times as many as entries: most look-ups are of pairs that have none, and end in this
  // table, which is small enough for a core's cache.
  std::vector<uint64_t> filter_;
  std::vector<int32_t> results_;  // by rank
  int shift_ = 0, filter_shift_ = 0;
};

/// Merges over bytes. Immutable: any number of threads may use one.
class ByteBpe {
 public:
  ByteBpe() : ByteBpe({}, {}) {}
  ByteBpe(const std::array<int32_t, 256>& byte_ids, BpeMerges merges);
  /// From now on a word that is one of these tokens is that token, whatever the merges say. Only those are kept of which they say something
  /// else.
  void keep_whole(const std::vector<std::pair<std::string, int32_t>>& tokens);
  /// Appends the ids of a word.
  void encode(std::string_view bytes, std::vector<int32_t>& ids) const;

 private:
  void encode_by_merges(std::string_view bytes, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  BpeMerges merges_;
  std::vector<int32_t> byte_pair_ranks_;  // by left * 256 + right
  Vocabulary whole_;
  size_t longest_whole_ = 0;
};

}  // namespace ingot::data
