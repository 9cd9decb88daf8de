// The merges of byte pair encoding, and the one loop that applies them: the pair of neighbours of the lowest rank becomes one token, the
// leftmost of equals first, until no pair of neighbours is left that has a merge. Immutable once made: any number of threads may use one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ingot::data {

struct BpeMerge {
  int32_t left = 0, right = 0;  // ids of the neighbours
  int32_t rank = 0;             // not negative; several merges may have the same
  int32_t result = 0;
};

class BpeMerges {
 public:
  BpeMerges() : BpeMerges(std::vector<BpeMerge>()) {}
  /// Of merges of the same pair the last counts.
  explicit BpeMerges(const std::vector<BpeMerge>& merges);

  /// Merges in place and returns how many ids are left, at the beginning of `ids`.
  size_t apply(std::span<int32_t> ids) const;

 private:
  static constexpr int32_t kNone = INT32_MAX;  // as a rank: this pair has no merge
  struct Entry {
    uint64_t pair = UINT64_MAX;
    int32_t rank = kNone, result = 0;
  };
  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  // Where the pair is, or where it would be: an entry with the rank kNone.
  size_t slot_of(uint64_t pair) const {
    size_t slot = pair * 0x9E3779B97F4A7C15 >> shift_;
    while (entries_[slot].pair != pair && entries_[slot].rank != kNone) slot = (slot + 1) & (entries_.size() - 1);
    return slot;
  }
  const Entry& find(int32_t left, int32_t right) const { return entries_[slot_of(pair_of(left, right))]; }
  size_t apply_to_few(std::span<int32_t> ids) const;
  size_t apply_to_many(std::span<int32_t> ids) const;

  std::vector<Entry> entries_;  // open addressing, at most half full
  int shift_ = 0;
};

}  // namespace ingot::data
