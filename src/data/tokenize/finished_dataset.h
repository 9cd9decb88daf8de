// PREFIX.bin, .idx, .mask and .manifest.json: the dataset that a plan is for, and what it was made from. One thread.
#pragma once

#include <optional>

#include "data/tokenize/piece_folder.h"

namespace ingot::data {

class FinishedDataset {
 public:
  /// `plan` and `tokenizer` must outlive it.
  FinishedDataset(const fs::path& prefix, const TokenizePlan& plan, const Tokenizer& tokenizer);

  /// What is there of the same inputs and settings. Throws UsageError that says what differs where something else is, unless `overwrite`.
  std::optional<TokenizeResult> find(bool overwrite) const;
  std::optional<TokenizeResult> find_own() const { return find(true); }

  /// Joins the pieces, all of which are finished, and writes the manifest last. Throws DataError if all of them are empty.
  TokenizeResult make(PieceFolder& pieces, PieceClaim& claim) const;

 private:
  std::string named(const char* suffix) const { return prefix_.string() + suffix; }
  fs::path manifest() const { return named(".manifest.json"); }
  nlohmann::ordered_json files() const;
  TokenizeResult completed(TokenizeResult total) const;

  fs::path prefix_;
  const TokenizePlan& plan_;
  const Tokenizer& tokenizer_;
};

}  // namespace ingot::data
