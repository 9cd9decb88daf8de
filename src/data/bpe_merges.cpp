#include "data/bpe_merges.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <utility>

#include "base/error.h"

namespace ingot::data {
namespace {

// A pair that had a merge when it was put into the queue.
struct Candidate {
  int32_t rank = 0, at = 0;
  bool operator<(const Candidate& other) const {  // the queue gives the largest: lowest rank, then leftmost
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

struct Neighbours {
  int32_t previous = -1, next = -1;
};

}  // namespace

BpeMerges::BpeMerges(const std::vector<BpeMerge>& merges) {
  constexpr size_t kFilterBits = 8;  // of each entry
  const size_t size = std::bit_ceil(std::max<size_t>(merges.size() + merges.size() / 2, 64));
  shift_ = 64 - std::countr_zero(size);
  filter_shift_ = 64 - std::countr_zero(kFilterBits * size);
  entries_.resize(size, kEmpty);
  filter_.resize(kFilterBits * size / 64);
  for (const BpeMerge& merge : merges) {
    if (std::max({merge.left, merge.right, merge.result}) >= (1 << kIdBits) - 1 || merge.rank >= (1 << kRankBits) - 1)
      throw base::DataError("its merge of the tokens {} and {} to {}, the {}th, is beyond {} tokens and {} merges", merge.left, merge.right,
                            merge.result, merge.rank, 1 << kIdBits, 1 << kRankBits);
    const uint64_t pair = pair_of(merge.left, merge.right), hash = hash_of(pair), bit = hash >> filter_shift_;
    const auto rank = static_cast<size_t>(merge.rank);
    entries_[slot_of(pair, hash)] = pair << kRankBits | rank;
    filter_[bit / 64] |= uint64_t{1} << bit % 64;
    if (results_.size() <= rank) results_.resize(std::max(rank + 1, 2 * results_.size()));
    results_[rank] = merge.result;
  }
}

size_t BpeMerges::apply(std::span<int32_t> ids) const {
  if (ids.size() < 2) return ids.size();
  if (ids.size() > kFew) return apply_to_many(ids);
  Word word;
  word.pairs = ids.size() - 1;
  std::copy(ids.begin(), ids.end(), word.ids.begin());
  for (size_t i = 0; i < word.pairs; ++i) word.ranks[i] = rank_of(ids[i], ids[i + 1]);
  merge(word);
  std::copy_n(word.ids.begin(), word.pairs + 1, ids.begin());
  return word.pairs + 1;
}

void BpeMerges::merge(Word& word) const {
  auto& [ids, ranks, pairs] = word;
  while (pairs > 0) {
    uint64_t lowest = UINT64_MAX;  // rank above, place below
    for (size_t i = 0; i < pairs; ++i) lowest = std::min(lowest, static_cast<uint64_t>(ranks[i]) << 32 | i);
    if (lowest >> 32 == kNone) break;
    const size_t at = lowest & UINT32_MAX;
    ids[at] = results_[static_cast<size_t>(ranks[at])];
    for (size_t i = at + 1; i < pairs; ++i) ids[i] = ids[i + 1], ranks[i - 1] = ranks[i];
    --pairs;
    if (at < pairs) ranks[at] = rank_of(ids[at], ids[at + 1]);
    if (at > 0) ranks[at - 1] = rank_of(ids[at - 1], ids[at]);
  }
}

size_t BpeMerges::apply_to_many(std::span<int32_t> ids) const {
  const auto count = static_cast<int32_t>(ids.size());
  std::vector<Neighbours> around(ids.size());
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t at) {
    const int32_t next = at < 0 ? -1 : around[static_cast<size_t>(at)].next;
    if (next < 0) return;
    const int32_t rank = rank_of(ids[static_cast<size_t>(at)], ids[static_cast<size_t>(next)]);
    if (rank != kNone) queue.push({rank, at});
  };
  for (int32_t i = 0; i < count; ++i) around[static_cast<size_t>(i)] = {i - 1, i + 1 < count ? i + 1 : -1};
  for (int32_t i = 0; i < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    auto& left = ids[static_cast<size_t>(best.at)];
    auto& [previous, next] = around[static_cast<size_t>(best.at)];
    if (left < 0 || next < 0) continue;
    if (rank_of(left, ids[static_cast<size_t>(next)]) != best.rank) continue;  // a neighbour has changed since
    left = results_[static_cast<size_t>(best.rank)];
    ids[static_cast<size_t>(next)] = -1;
    next = around[static_cast<size_t>(next)].next;
    if (next >= 0) around[static_cast<size_t>(next)].previous = best.at;
    consider(previous);
    consider(best.at);
  }
  return static_cast<size_t>(std::remove(ids.begin(), ids.end(), -1) - ids.begin());
}

ByteBpe::ByteBpe(const std::array<int32_t, 256>& byte_ids, BpeMerges merges)
    : byte_ids_(byte_ids), merges_(std::move(merges)), byte_pair_ranks_(256 * 256, BpeMerges::kNone) {
  for (size_t left = 0; left < 256; ++left) {
    for (size_t right = 0; right < 256; ++right) byte_pair_ranks_[left * 256 + right] = merges_.rank_of(byte_ids[left], byte_ids[right]);
  }
}

void ByteBpe::keep_whole(const std::vector<std::pair<std::string, int32_t>>& tokens) {
  std::vector<int32_t> ids;
  for (const auto& [bytes, id] : tokens) {
    ids.clear();
    encode_by_merges(bytes, ids);
    if (ids.size() == 1 && ids[0] == id) continue;
    whole_.add(bytes, id);
    longest_whole_ = std::max(longest_whole_, bytes.size());
  }
}

void ByteBpe::encode(std::string_view bytes, std::vector<int32_t>& ids) const {
  if (bytes.size() <= longest_whole_) {
    if (const int32_t id = whole_.find(bytes); id >= 0) return ids.push_back(id);
  }
  encode_by_merges(bytes, ids);
}

void ByteBpe::encode_by_merges(std::string_view bytes, std::vector<int32_t>& ids) const {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (bytes.empty()) return;
  if (bytes.size() > BpeMerges::kFew) {
    const size_t before = ids.size();
    for (size_t i = 0; i < bytes.size(); ++i) ids.push_back(byte_ids_[byte(i)]);
    return ids.resize(before + merges_.apply_to_many(std::span(ids).subspan(before)));
  }
  BpeMerges::Word word;
  word.pairs = bytes.size() - 1;
  for (size_t i = 0; i < bytes.size(); ++i) word.ids[i] = byte_ids_[byte(i)];
  for (size_t i = 0; i < word.pairs; ++i) word.ranks[i] = byte_pair_ranks_[byte(i) * size_t{256} + byte(i + 1)];
  merges_.merge(word);
  ids.insert(ids.end(), word.ids.begin(), word.ids.begin() + static_cast<std::ptrdiff_t>(word.pairs) + 1);
}

}  // namespace ingot::data
