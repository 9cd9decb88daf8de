// A tokenizer as texts by the names of its files, which can then lie in another file: what a folder of a tokenizer holds.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "data/tokenizer.h"

namespace ingot::data {

using TokenizerFiles = std::map<std::string, std::string>;

/// What `tokenizer` was loaded from, as tokenizer.json, tokenizer.model or tokenizer.tiktoken (and tiktoken.json), with what lies beside
/// it: its configuration, special tokens, chat template and how a model generates. Throws FileError.
TokenizerFiles files_of(const Tokenizer& tokenizer);

/// `origin` is for messages. Null without a tokenizer among the files; throws DataError for one that cannot be used.
std::unique_ptr<Tokenizer> load_tokenizer(const TokenizerFiles& files, const fs::path& origin);

}  // namespace ingot::data
