// Whether a folder's storage keeps up with a run's data: what an iteration reads, how far that is from contiguous, and how many such reads
// a second the storage was measured to sustain. plan/run/loading.h has the formulas.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/data_loading.h"
#include "bench/storage.h"
#include "train/config.h"

namespace ingot::bench {

inline constexpr int64_t kFeedPageBytes = 4096;

/// What a run reads, and how far that is from contiguous.
struct DataFeed {
  plan::LoadingShape shape;
  ReadPattern pattern;
  std::string source;  // where the pattern is from, for people
  bool is_simulated = false;
  double step_s = 0;  // 0 = unknown
  bool is_predicted = false;
};

struct FeedRequest {
  train::RunConfig config;
  std::string folder = ".";        // where a simulated dataset is made and removed again
  double step_s = 0;               // of an iteration; 0: as this machine's profile predicts it
  int64_t document_tokens = 1000;  // mean length of simulated documents
};

/// Of the phase that reads most: of its own data where that is there, else of simulated documents. Throws ConfigError, DataError,
/// FileError.
DataFeed data_feed(const FeedRequest& request);

/// `reads`: the storage's best random reads of kFeedPageBytes; null: not measured.
std::string describe(const DataFeed& feed, const StorageResult* reads);
nlohmann::ordered_json to_json(const DataFeed& feed, const StorageResult* reads);

}  // namespace ingot::bench
