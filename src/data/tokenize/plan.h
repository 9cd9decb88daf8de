// What `ingot data tokenize` does in which pieces: a plan of the inputs and settings alone, the same for every process that takes part.
// Immutable once made.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/tokenize/tokenize.h"

namespace ingot::data {

struct TokenizePlan {
  struct Input {
    fs::path path;
    int64_t bytes = 0, modified_ns = 0;  // 0 of a URL, and of a pipe, which has no size either
    std::string version = {};            // of a URL, where its server says one
    bool operator==(const Input&) const = default;
  };
  /// Bytes [begin, end) of an input, about: the cuts are at the next document_boundary(). end = -1: all of it.
  struct Range {
    size_t input = 0;
    int64_t begin = 0, end = -1;
  };
  struct Piece {
    std::vector<Range> ranges;
    int64_t bytes = 0;
  };

  std::vector<Input> inputs;
  std::vector<Piece> pieces;  // at least one; their documents behind one another are the data set
  TextOptions text;
  TokenType token_type = TokenType::int32;
  int64_t total_bytes = 0;
  bool has_pipe = false;  // then nothing can be read again, and all of it is one piece
  /// All that the data set depends on, and its hash.
  nlohmann::ordered_json made_from;
  std::string fingerprint;

  /// The ranges of a piece as they are read. Throws FileError.
  std::vector<FileRange> ranges_of(const Piece& piece) const;
};

/// Looks at every input: one that is missing or not readable is a FileError. Pieces have `options.piece_bytes` at most, but for files that
/// cannot be cut: URLs, compressed ones, Parquet, and texts of which each file is a document.
TokenizePlan plan_of(const Tokenizer& tokenizer, const TokenizeOptions& options);

/// How an input looks now. Throws FileError.
TokenizePlan::Input input_of(const fs::path& path);

/// What has changed from one `made_from` to the other, for a message; "" if they are equal.
std::string difference(const nlohmann::ordered_json& before, const nlohmann::ordered_json& now);

}  // namespace ingot::data
