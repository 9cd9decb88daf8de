// Patterns that most byte-level tokenizers share, as code: where a word ends, without a regular expression. Each gives what its pattern
// gives on PCRE2, whose character tables it uses.
#pragma once

#include <cstddef>
#include <string_view>

#include "data/hugging_face/regex.h"

namespace ingot::data {

/// The end of the word that begins at `at` < text.size(); words follow each other without gaps. `text` is valid UTF-8.
using WordScanner = size_t (*)(std::string_view text, size_t at);

/// The scanner of a pattern, null for one that none is known for. Any number of threads may ask and scan.
WordScanner scanner_of(const Regex& pattern);

}  // namespace ingot::data
