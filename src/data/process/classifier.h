// A linear classifier of texts: logistic regression on hashed words and pairs of words, trained on two heaps of documents. Small enough to
// ask for every document of a corpus; what a large model says of a sample can be learned by one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace ingot::data::process {

class Classifier {
 public:
  /// Probability that the text is of the first heap, as far as the training says.
  double score(std::string_view text) const;

  void save(const base::fs::path& path) const;
  /// Throws FileError, and DataError for what is no classifier or is damaged.
  static Classifier load(const base::fs::path& path);

 private:
  friend class ClassifierTraining;
  std::vector<float> weights_;  // of the hashed features; the last one of none
};

/// How it does on documents that it was not trained on.
struct ClassifierResult {
  int64_t positive = 0, negative = 0;  // documents that it was trained on
  int64_t held_out = 0;
  double accuracy = 0;  // at a threshold of 0.5
  double auc = 0;       // that a document of the first heap has a higher score than one of the second; NaN where one has none held out
};

struct ClassifierOptions {
  int64_t epochs = 5;
  uint64_t seed = 0;
  double rate = 0.5;
  double held_out = 0.1;  // share of the documents
};

/// The same bits for the same documents in the same order. Throws DataError where one of the heaps is empty.
Classifier train_classifier(const std::vector<std::string>& positive, const std::vector<std::string>& negative,
                            const ClassifierOptions& options, ClassifierResult& result);

}  // namespace ingot::data::process
