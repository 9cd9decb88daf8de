// A tokenizer as a Hugging Face folder needs it, beside a model's weights.
#pragma once

#include <string>

#include "data/sentencepiece_model.h"
#include "data/tokenizer.h"

namespace ingot::data {

struct ExportedTokenizer {
  bool tokenizer_json = false;  // written, and found to give the same ids
  std::string why_not;          // otherwise: what stands in the way
};

/// Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json into an existing folder; a SentencePiece model also
/// lies there as tokenizer.model. A tokenizer that came as a tokenizer.json is copied with what lies beside it, one of a .tiktoken file as
/// tokenizer.tiktoken with a tiktoken.json that says its pattern and special tokens, and without tokenizer.json.
///
/// The tokenizer.json of a SentencePiece model gives the library's ids for every text, save that the spellings of special tokens
/// ("<eos>") are taken for these tokens, as Hugging Face does everywhere. Models that it cannot express so (normalisation rules,
/// squeezed spaces, unused pieces) are exported as tokenizer.model alone, and the result says why. Throws FileError.
ExportedTokenizer export_tokenizer(const Tokenizer& tokenizer, const fs::path& folder);

/// The tokenizer.json of a model, or "" with the reason in `why_not`.
std::string tokenizer_json_of(const SentencePieceModel& model, const SpecialTokens& special, std::string& why_not);

}  // namespace ingot::data
