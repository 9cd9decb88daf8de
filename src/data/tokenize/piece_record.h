// What a finished piece of a dataset holds (piece_folder.h), and the JSON in which its record and the manifest say so.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenize/tokenize.h"

namespace ingot::data {

struct PieceRecord {
  struct Source {
    std::string path, hash;  // hash: XXH3-128 of the text, unpacked, of this range
    int64_t begin = 0, text_bytes = 0;
  };
  TokenizeResult counts;
  bool has_mask = false;
  std::vector<Source> sources;
};

/// Adds the counts of a piece; the first problem is the first one's.
void add(const TokenizeResult& piece, TokenizeResult& total);

nlohmann::ordered_json to_json(const TokenizeResult& counts);
nlohmann::ordered_json to_json(const PieceRecord& record);
/// Nothing where something is missing or of another type.
std::optional<TokenizeResult> counts_of(const nlohmann::ordered_json& json);
std::optional<PieceRecord> record_of(const nlohmann::ordered_json& json);

/// The object in a file; null where there is none that can be read as one. Throws FileError.
nlohmann::ordered_json read_json_object(const fs::path& path);
/// Durably.
void write_json(const fs::path& path, const nlohmann::ordered_json& json);

}  // namespace ingot::data
