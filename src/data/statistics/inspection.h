// All that `ingot data inspect` says of a dataset, or of what a run is fed with, for a page (report/data/page.h) and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/statistics/packed.h"
#include "data/statistics/shown.h"
#include "data/statistics/statistics.h"

namespace ingot::data {

struct Inspection {
  std::string title;
  Statistics statistics;
  std::vector<PackedPhase> phases;    // of a run
  std::vector<ShownTokens> shown;     // documents; of a run, its first samples
  std::vector<ShownTokens> repeated;  // the beginnings of statistics.repeated
  std::vector<std::string> remarks;   // what could not be shown, and why
};

struct InspectionOptions {
  int64_t samples = 8;          // documents, or samples of each phase, to show
  int64_t most_shown = 2048;    // tokens of each
  int64_t most_beginning = 64;  // tokens of a document that is repeated
  StatisticsOptions statistics;
};

/// A phase of a run, as training reads its data.
struct RunPhase {
  std::string name;
  DataConfig data;
  LoaderOptions loader;
  int64_t samples = 0;
};

/// `tokenizer` may be null. Throws what the dataset and the tokenizer throw.
Inspection inspect_dataset(const fs::path& path, const Tokenizer* tokenizer, const InspectionOptions& options);
Inspection inspect_run(const std::string& title, const std::vector<RunPhase>& phases, const Tokenizer* tokenizer,
                       const InspectionOptions& options);

/// Numbers alone: no text of the data.
nlohmann::ordered_json numbers_of(const Inspection& inspection);

/// Ids that occur, the most frequent first, then the smaller id.
std::vector<int32_t> by_frequency(const VocabularyUse& vocabulary);

}  // namespace ingot::data
