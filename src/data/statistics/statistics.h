// What token datasets hold, in numbers: lengths of documents, which ids of the vocabulary occur, exact duplicates, bytes per token.
//
// Every length is looked at, in the index. Tokens are all read up to `most_tokens`; of more they are sampled, and the numbers say of how
// many they are. The memory that it takes has a bound, unless very many different documents have one length and one middle. One thread; the
// datasets must outlive the call only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/statistics/lengths.h"
#include "data/tokenizer.h"

namespace ingot::data {

struct StatisticsOptions {
  int64_t vocab_size = 0;                     // 0: not known; ids are then counted up to 2^22
  int64_t most_tokens = int64_t{1} << 28;     // that are read to count ids, and again to compare documents
  int64_t most_documents = int64_t{1} << 21;  // whose hashes are held in memory
  int64_t most_decoded = int64_t{1} << 19;    // tokens of each dataset that are decoded
  int64_t most_repeated = 12;                 // documents to name
};

struct DatasetStatistics {
  std::string path;
  std::string token_type;
  int64_t tokens = 0;
  LengthCounts lengths;

  int64_t counted_tokens = 0;    // whose ids were counted
  int64_t unlearned_tokens = 0;  // of those, by PREFIX.mask
  bool has_mask = false;

  int64_t decoded_tokens = 0, decoded_bytes = 0;  // without special tokens in the bytes; 0 without a tokenizer

  int64_t compared_documents = 0, compared_tokens = 0;
  int64_t repeated_documents = 0, repeated_tokens = 0;  // of those: equal to one before, in this dataset or an earlier one
};

/// A document of which there are several.
struct RepeatedDocument {
  size_t dataset = 0;    // of the first one
  int64_t document = 0;  // the first one
  int64_t tokens = 0, copies = 0;
};

struct VocabularyUse {
  int64_t size = 0;             // as given; 0 where it is not known
  std::vector<int64_t> counts;  // of each id; as many as `size`, or up to the largest id
  int64_t outside = 0;          // tokens at or beyond the end of `counts`
  int64_t largest_id = 0;
  int64_t used() const;  // ids that occur
};

struct Statistics {
  std::vector<DatasetStatistics> datasets;
  VocabularyUse vocabulary;
  double compared_share = 1;               // of the documents, chosen by what they hold, so that all copies of one are chosen or none
  std::vector<RepeatedDocument> repeated;  // those with the most copies first
  bool counts_all() const;
};

/// `tokenizer` may be null. Throws DataError for ids that are no ids.
Statistics statistics_of(const std::vector<const IndexedDataset*>& datasets, const Tokenizer* tokenizer, const StatisticsOptions& options);

}  // namespace ingot::data
