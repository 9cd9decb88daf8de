// A text as its tokens come: what can be shown of it, and where a stop text ends it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace ingot::serve {

class TextSoFar {
 public:
  /// `before`: the prompt, whose last tokens decide how the first of the text is spelled (" Paris", not "Paris").
  TextSoFar(const data::Tokenizer& tokenizer, std::vector<std::string> stops, std::span<const int64_t> before = {});

  /// What can be shown now that this token has come: nothing of a character that is not whole, nor of what may become a stop text.
  std::string push(int64_t id);
  /// What was held back; after the last token.
  std::string finish();
  /// A stop text has come. It is not part of the text, and nothing behind it is.
  bool is_stopped() const { return is_stopped_; }

 private:
  std::string show(std::string more);

  data::StreamDecoder decoder_;
  const int32_t vocab_size_;
  const std::vector<std::string> stops_;
  std::string held_;
  bool is_stopped_ = false;
};

}  // namespace ingot::serve
