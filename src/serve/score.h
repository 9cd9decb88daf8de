// How likely a model finds documents that are there already.
#pragma once

#include <functional>
#include <vector>

#include "data/indexed_dataset.h"
#include "models/model.h"

namespace ingot::serve {

struct ScoreOptions {
  int64_t row_tokens = 4096;                        // documents side by side in a row; a longer one has a row of its own
  std::function<void(int64_t documents)> progress;  // done so far; may be empty
};

/// The sum of log p(token) over the learned tokens of each document, given those before them. Throws DataError for ids beyond the
/// vocabulary.
std::vector<double> score_documents(models::Model& model, const data::IndexedDataset& dataset, const ScoreOptions& options = {});

}  // namespace ingot::serve
