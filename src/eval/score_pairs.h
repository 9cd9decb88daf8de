// How likely a model finds continuations of contexts, many at once.
//
// Questions whose contexts are about as long go through the model as one batch, each context once; its answers are then continuations of
// copies of what the layers remember. What has one answer alone goes in one pass. Rows are padded on the right, which nothing before sees.
#pragma once

#include <functional>
#include <vector>

#include "eval/encode.h"
#include "eval/ranks.h"
#include "models/model.h"

namespace ingot::eval {

struct ScoreOptions {
  int64_t pass_tokens = 2048;                   // through the model at once, unless a row is longer
  std::function<void(int64_t pairs)> progress;  // done so far; may be empty
  const Ranks* ranks = nullptr;                 // null: this one alone, or a tensor axis
};

struct PairScore {
  double log_likelihood = 0;
  bool is_greedy = false;          // each token was the likeliest
  std::vector<float> of_tokens{};  // log-probabilities
};

/// Of each pair, whose ids must be of the vocabulary and fit into the model's context. Contexts are shared among pairs that follow one
/// another. Throws ConfigError for an encoder, and for a model of several ranks but those of a tensor axis. One thread. All of
/// options.ranks call it with the same pairs, and get the scores of all.
std::vector<PairScore> score_pairs(models::Model& model, const std::vector<Pair>& pairs, const ScoreOptions& options = {});

}  // namespace ingot::eval
