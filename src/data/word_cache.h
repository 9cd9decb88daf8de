// Text falls into words, and most words have been seen before: the ids of the ones seen are kept, up to a bound, so that a
// tokenizer does its real work once per word. Any number of threads may share a cache; what it returns never depends on
// what it holds.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ingot::data {

class WordCache {
 public:
  /// Appends the ids of `word` to `out`: from the cache, or from `encode(word)`, which may run on several threads at once.
  template <class Encode>
  void append(std::string_view word, std::vector<int32_t>& out, const Encode& encode) {
    const size_t hash = std::hash<std::string_view>{}(word);
    Shard& shard = shards_[hash % kShards];
    if (word.size() <= kLongestBytes) {
      const std::lock_guard lock(shard.mutex);
      if (const auto found = shard.words.find(word); found != shard.words.end()) {
        out.insert(out.end(), found->second.begin(), found->second.end());
        return;
      }
    }
    const std::vector<int32_t> ids = encode(word);
    out.insert(out.end(), ids.begin(), ids.end());
    if (word.size() > kLongestBytes) return;
    const std::lock_guard lock(shard.mutex);
    if (shard.words.size() < kWordsPerShard) shard.words.emplace(word, ids);
  }

 private:
  static constexpr size_t kShards = 16, kWordsPerShard = 8192, kLongestBytes = 64;
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> words;
  };
  std::array<Shard, kShards> shards_;
};

}  // namespace ingot::data
