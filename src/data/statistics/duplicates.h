// Documents of token datasets that are equal, token for token, with a bound on memory: hashes of all documents while they are few, else of
// a share of them. A document is chosen by its length and sixteen tokens in its middle, so that all its copies are chosen or none, and the
// share of repeated ones among the chosen is that of all.
#pragma once

#include <xxhash.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "data/indexed_dataset.h"

namespace ingot::data {

struct RepeatedDocument;

class Duplicates {
 public:
  struct Options {
    int64_t most_tokens = 0, most_documents = 0;  // that are hashed, about
  };
  /// The datasets must outlive it. One thread.
  Duplicates(const std::vector<const IndexedDataset*>& datasets, const Options& options);

  struct Counts {
    int64_t documents = 0, tokens = 0;                    // that were compared; empty documents are not
    int64_t repeated_documents = 0, repeated_tokens = 0;  // equal to one before, of this dataset or another
  };
  /// To be called once for each dataset, by its number.
  Counts look_at(size_t dataset);

  /// Of the documents that are compared.
  double share() const { return share_; }
  /// Of what was looked at so far, the most copies first, then by place.
  std::vector<RepeatedDocument> most_repeated(int64_t most) const;

 private:
  struct Hash {
    size_t operator()(const XXH128_hash_t& digest) const { return digest.low64; }
  };
  struct Equal {
    bool operator()(const XXH128_hash_t& a, const XXH128_hash_t& b) const { return a.low64 == b.low64 && a.high64 == b.high64; }
  };
  struct First {
    int64_t document = 0;
    int32_t dataset = 0;
    int64_t copies = 0;
  };
  bool is_chosen(const IndexedDataset& dataset, int64_t document) const;

  std::vector<const IndexedDataset*> datasets_;
  double share_ = 1;
  std::unordered_map<XXH128_hash_t, First, Hash, Equal> seen_;
};

}  // namespace ingot::data
