// A block of text as ids: what the threads of `ingot data tokenize` do.
#pragma once

#include <vector>

#include "data/text_reader.h"
#include "data/tokenize/tokenize.h"
#include "data/tokenizer.h"

namespace ingot::data {

struct EncodedBlock {
  struct Part {
    size_t tokens = 0;
    bool ends_document = true, is_learned = true;
  };
  std::vector<int32_t> tokens;
  std::vector<Part> parts;
  ParsedBlock counts;  // its parts are empty
  TrimCounts trim;
};

/// Any thread. Throws DataError that names the place of what cannot be read.
EncodedBlock encode(const Tokenizer& tokenizer, const TextBlock& block, const TokenizeOptions& options);

}  // namespace ingot::data
