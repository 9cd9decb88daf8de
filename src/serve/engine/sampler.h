// How the next token is chosen from a model's logits: penalties and biases first, then temperature, then what is left out, then a draw.
// A choice is a pure function of the logits, the options, the tokens so far and the position.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace ingot::serve {

struct SamplingOptions {
  double temperature = 0;  // 0 = greedy
  int64_t top_k = 0;       // 0 = all
  double top_p = 1;        // 1 = all
  double min_p = 0;        // of the likeliest token's probability; 0 = all
  /// Logits above 0 of tokens that the prompt or the text has are divided by it, others multiplied (CTRL, arXiv 1909.05858); 1 = off.
  double repetition_penalty = 1;
  double presence_penalty = 0, frequency_penalty = 0;  // taken from logits of tokens that the text has: once, and for each time (OpenAI)
  std::map<int64_t, double> logit_bias{};              // added to logits, by token
  uint64_t seed = 0;
};

struct ScoredToken {
  int64_t id = 0;
  double logprob = 0;  // of the logits as the model has them
};

struct Choice {
  int64_t id = 0;
  double logprob = 0;                    // as above; 0 unless asked for
  std::vector<ScoredToken> likeliest{};  // as many as asked for, the likeliest first
};

/// The log-probability of `id`, and the `count` likeliest tokens.
Choice scored(std::span<const float> logits, int64_t id, int64_t count);

class Sampler {
 public:
  /// `prompt`: the tokens that a repetition penalty counts besides the text's own.
  Sampler(SamplingOptions options, std::span<const int64_t> prompt);

  /// The token at `position`, counted from the prompt's first. Throws Error where logits are not numbers.
  int64_t choose(std::span<const float> logits, int64_t position);

 private:
  bool changes_logits() const;

  SamplingOptions options_;
  std::map<int64_t, int64_t> seen_;   // of the prompt and the text, for the repetition penalty
  std::map<int64_t, int64_t> count_;  // of the text
  std::vector<float> changed_;
};

/// From [0, 1), what the draw at a position goes by; rows of a batch draw apart.
double uniform_of(uint64_t seed, int64_t position, int64_t row = 0);

/// One of the ids by `uniform` from [0, 1), of what temperature, top-k, top-p and min-p leave; the likeliest with temperature 0.
int64_t draw(std::span<const float> logits, const SamplingOptions& options, double uniform);

}  // namespace ingot::serve
