// Tokens to show a person: documents of a dataset, or rows as a run is fed with them, each with what its tokens belong to.
#pragma once

#include <string>
#include <vector>

#include "data/loader.h"

namespace ingot::data {

/// Tokens of one document that stand side by side.
struct ShownPiece {
  std::string source;    // the dataset's path
  int64_t document = 0;  // its number there
  int64_t first = 0;     // of the document's tokens, the one that the piece begins with
  int64_t document_tokens = 0;
  size_t tokens = 0;  // of the piece, as far as it is shown
};

struct ShownTokens {
  std::string title;
  std::vector<int32_t> ids;
  std::vector<bool> learned;  // of each id: whether there is a loss on it
  std::vector<ShownPiece> pieces;
  int64_t tokens = 0;   // of the whole; ids has as many of them as are shown
  int64_t padding = 0;  // behind the last piece, not in ids
};

/// A document's first `most` tokens. `path`: what the dataset is called.
ShownTokens shown_document(const IndexedDataset& dataset, const std::string& path, int64_t document, int64_t most);

/// The sample's first `most` tokens, as training gets them: with fill in the middle and masked tokens where they are set.
ShownTokens shown_sample(const Loader& loader, const DataConfig& config, int64_t sample, int64_t most);

}  // namespace ingot::data
