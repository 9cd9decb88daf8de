// Text falls into words, and most words have been seen before: the ids of the ones seen last are kept, so that a tokenizer does its real
// work once per word. What comes out never depends on what is kept.
//
// Any number of threads may lease a table at once; each table is one thread's until it is given back, so that a look-up takes no lock.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

namespace ingot::data {

class WordCache {
 private:
  static constexpr size_t kSlotBits = 15, kSlots = size_t{1} << kSlotBits, kLongestBytes = 30, kMostIds = 8;
  struct alignas(64) Slot {  // one cache line; a length of 0: empty
    uint8_t length = 0, count = 0;
    std::array<char, kLongestBytes> bytes;
    std::array<int32_t, kMostIds> ids;
  };
  using Table = std::array<Slot, kSlots>;

  // Multiplies eight bytes at a time, the last of which may overlap those before.
  static size_t slot_of(std::string_view word) {
    constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;
    uint64_t hash = word.size() * kFactor;
    const auto mix = [&](const char* bytes, size_t count) {
      uint64_t block = 0;
      std::memcpy(&block, bytes, count);
      hash = (hash ^ (hash >> 32) ^ block) * kFactor;
    };
    const char* const end = word.data() + word.size();
    if (word.size() >= 8) {
      for (const char* at = word.data(); at + 8 < end; at += 8) mix(at, 8);
      mix(end - 8, 8);
    } else if (word.size() >= 4) {
      mix(word.data(), 4);
      mix(end - 4, 4);
    } else {
      mix(word.data(), 1);
      mix(word.data() + word.size() / 2, 1);
      mix(end - 1, 1);
    }
    return hash >> (64 - kSlotBits);
  }

 public:
  class Lease {
   public:
    Lease(WordCache& cache, std::unique_ptr<Table> table) : cache_(cache), table_(std::move(table)) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() {
      const std::lock_guard lock(cache_.mutex_);
      cache_.idle_.push_back(std::move(table_));
    }

    /// Appends the ids of each word to `out`; `text_of(word)` is a word's text. What lies some words ahead is fetched meanwhile.
    template <class Words, class TextOf, class Encode>
    void append_all(const Words& words, const TextOf& text_of, std::vector<int32_t>& out, const Encode& encode) {
      constexpr size_t kAhead = 8;
      for (size_t i = 0; i < words.size(); ++i) {
        if (i + kAhead < words.size()) prefetch(text_of(words[i + kAhead]));
        append(text_of(words[i]), out, encode);
      }
    }

    /// Appends the ids of `word` to `out`: kept ones, or what `encode(word, out)` appends.
    template <class Encode>
    void append(std::string_view word, std::vector<int32_t>& out, const Encode& encode) {
      if (word.empty() || word.size() > kLongestBytes) return encode(word, out);
      Slot& slot = (*table_)[slot_of(word)];
      if (slot.length == word.size() && std::memcmp(slot.bytes.data(), word.data(), word.size()) == 0) {
        out.insert(out.end(), slot.ids.begin(), slot.ids.begin() + slot.count);
        return;
      }
      const size_t before = out.size();
      encode(word, out);
      const size_t count = out.size() - before;
      if (count > kMostIds) return;
      slot.length = static_cast<uint8_t>(word.size());
      slot.count = static_cast<uint8_t>(count);
      std::copy(word.begin(), word.end(), slot.bytes.begin());
      std::copy(out.begin() + static_cast<std::ptrdiff_t>(before), out.end(), slot.ids.begin());
    }

   private:
    void prefetch(std::string_view word) const {
      if (!word.empty() && word.size() <= kLongestBytes) __builtin_prefetch(&(*table_)[slot_of(word)]);
    }

    WordCache& cache_;
    std::unique_ptr<Table> table_;
  };

  Lease lease() {
    std::unique_ptr<Table> table;
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        table = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (!table) table = std::make_unique<Table>();
    return Lease(*this, std::move(table));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Table>> idle_;
};

}  // namespace ingot::data
