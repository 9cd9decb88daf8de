// Texts as the tokens that a model scores, cut as lm-evaluation-harness 0.4.13 cuts them (lm_eval/api/model.py, models/huggingface.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace ingot::eval {

/// What is scored: the continuation, given the context, which is never empty.
struct Pair {
  std::vector<int64_t> context, continuation;
};

/// Immutable. The tokenizer must outlive it.
class Encoder {
 public:
  /// `context`: most tokens that the model sees. Throws UsageError for a tokenizer without bos and eos.
  Encoder(const data::Tokenizer& tokenizer, int64_t context);

  /// With what the tokenizer's own template adds, unless the text begins with bos itself.
  std::vector<int64_t> encode(const std::string& text) const;
  /// White space at the context's end goes to the continuation, which is what is left of the ids of both behind as many as the context has.
  Pair pair(std::string context, std::string continuation) const;
  /// Disjoint windows that cover the text, each behind one token that it is given.
  std::vector<Pair> windows(const std::string& text, int64_t context) const;
  /// Cuts a context from the left so that the model sees no more than it can; true where it was. Throws DataError for a continuation that
  /// does not fit on its own.
  bool cut(Pair& pair) const;

  int64_t context() const { return context_; }
  const data::Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  const data::Tokenizer& tokenizer_;
  int64_t context_, prefix_;
  std::string prefix_text_;
};

/// Code points and bytes of a text, and its words as re.split(r"\s+", text) counts them.
int64_t characters_of(const std::string& text);
int64_t words_of(const std::string& text);
/// Without white space at its end, or around it, as Python has them.
std::string stripped_right(const std::string& text);
std::string stripped(const std::string& text);

}  // namespace ingot::eval
