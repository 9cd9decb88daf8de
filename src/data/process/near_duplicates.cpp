// Documents that share most of their runs of words, by MinHash (Broder 1997) in bands (Leskovec, Rajaraman and Ullman, Mining of Massive
// Datasets, 3.4). A signature has bands * rows hashes, each the least of all runs'; two documents whose runs overlap by a share s agree in
// one with probability s, and in all rows of a band at least once with 1 - (1 - s^rows)^bands: with 14 bands of 8 rows, FineWeb's, 0.21 at
// 0.6, 0.77 at 0.75 and 0.99 at 0.85. Documents that agree in a band are one cluster, and so are clusters that share a document; of each
// the first document stays.
#include <xxhash.h>

#include <array>
#include <unordered_map>

#include "base/error.h"
#include "base/vector_clones.h"
#include "data/process/steps.h"
#include "data/process/text_parts.h"

namespace ingot::data::process {
namespace {

// least[k] = min over runs of a hash with the k-th seed.
INGOT_VECTOR_CLONES void take_least(const uint32_t* runs, size_t count, const uint32_t* seeds, uint32_t* least, size_t hashes) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t run = runs[i];
    for (size_t k = 0; k < hashes; ++k) {
      uint32_t hash = (run ^ seeds[k]) * 0x85ebca6bU;
      hash = (hash ^ (hash >> 13)) * 0xc2b2ae35U;
      hash ^= hash >> 16;
      least[k] = hash < least[k] ? hash : least[k];
    }
  }
}

class NearDuplicates : public Search {
 public:
  explicit NearDuplicates(const StepConfig& config)
      : words_(config.words > 0 ? static_cast<size_t>(config.words) : 5),
        bands_(static_cast<size_t>(config.bands)),
        rows_(static_cast<size_t>(config.rows)) {
    uint64_t state = 1;
    for (size_t k = 0; k < bands_ * rows_; ++k) {  // splitmix64
      uint64_t z = state += 0x9e3779b97f4a7c15;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
      z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
      seeds_.push_back(static_cast<uint32_t>(z >> 32));
    }
  }

  void keys_of(const Document& document, int64_t number, std::vector<Record>& keys) const override {
    const auto words = word_hashes(document.text);
    if (words.empty()) return;
    const size_t length = std::min(words_, words.size());
    std::vector<uint32_t> runs;
    for (size_t i = 0; i + length <= words.size(); ++i) runs.push_back(static_cast<uint32_t>(run_hash(words, i, length)));
    std::vector<uint32_t> least(seeds_.size(), UINT32_MAX);
    take_least(runs.data(), runs.size(), seeds_.data(), least.data(), least.size());
    for (size_t band = 0; band < bands_; ++band)
      keys.push_back({{XXH3_64bits(least.data() + band * rows_, rows_ * sizeof(uint32_t)), band}, {number, 0}});
  }

  void find(RecordSorter& keys, const std::function<void(Removal)>& remove) const override {
    std::unordered_map<int64_t, int64_t> parents;  // of documents in a group
    const auto root_of = [&](int64_t document) {
      int64_t root = document;
      for (auto found = parents.find(root); found != parents.end() && found->second != root; found = parents.find(root))
        root = found->second;
      for (int64_t at = document; at != root;) at = std::exchange(parents[at], root);
      return root;
    };
    RecordSorter::Reader reader(keys);
    Record first, next;
    if (!reader.next(first)) return;
    while (reader.next(next)) {
      if (!next.same_key(first)) {
        first = next;
        continue;
      }
      const int64_t a = root_of(first.place.document), b = root_of(next.place.document);
      parents[a] = parents[b] = std::min(a, b);
    }
    for (const auto& [document, parent] : parents)
      if (const int64_t root = root_of(document); root != document) remove({{document, 0}, {root, 0}});
  }

  bool take_out(Document& document, std::span<const Removal> removals, Tally& tally) const override {
    tally.remove(document, "near duplicate",
                 fmt::format("as document {} of those that came to this step", removals.front().kept.document + 1));
    return false;
  }

 private:
  size_t words_, bands_, rows_;
  std::vector<uint32_t> seeds_;
};

}  // namespace

std::unique_ptr<Search> make_near_duplicates(const StepConfig& config) { return std::make_unique<NearDuplicates>(config); }

}  // namespace ingot::data::process
