// A tokenizer read from tiktoken's file of ranks: on each line the bytes of a token in base64, a space and its rank, which is its id. Words
// are merged by the rank of what two neighbours are together, as tiktoken does it, whichever way a token is put together.
#pragma once

#include "data/bpe_merges.h"
#include "data/hugging_face/added_tokens.h"
#include "data/hugging_face/pre_tokenizer.h"
#include "data/tiktoken_encodings.h"
#include "data/tokenizer.h"
#include "data/word_cache.h"

namespace ingot::data {

/// What can lie beside a file of ranks.
struct TiktokenSettings {
  std::string tiktoken_json;  // {"pattern": "…", "special_tokens": {"<|endoftext|>": 100257, …}}; "" for none
  std::string config;         // of a tokenizer_config.json, which may have both as well; "" for none
};

class TiktokenTokenizer : public Tokenizer {
 public:
  /// Reads `path` and, where they lie beside it, tiktoken.json and tokenizer_config.json. Pattern and special tokens are those of the first
  /// of these that has them, else of the encoding known by the file's name. Throws DataError naming the file and the line.
  explicit TiktokenTokenizer(const fs::path& path);
  /// From the text of the file; `origin` is for messages, and its name for known encodings.
  TiktokenTokenizer(std::string_view ranks, const TiktokenSettings& settings, const fs::path& origin);

  /// Special tokens that the text spells become those tokens, as with a tokenizer.json.
  std::vector<int32_t> encode(std::string_view text) const override;
  /// With bos and eos as add_bos_token and add_eos_token of a tokenizer_config.json beside the file say.
  std::vector<int32_t> encode_with_special(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids, bool keep_special = false) const override;
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  /// In the alphabet of byte-level BPE (hugging_face/byte_level.h).
  std::string piece(int32_t id) const override;
  int32_t id_of(std::string_view piece) const override;

  const TiktokenEncoding& encoding() const { return encoding_; }
  /// encoding() as a tiktoken.json.
  std::string settings_json() const;

 private:
  void load(std::string_view ranks, const TiktokenSettings& settings);
  void read_ranks(std::string_view text);
  void read_encoding(const TiktokenSettings& settings);
  void add_special_tokens();
  ByteBpe make_bpe() const;
  const std::string& bytes_of(int32_t id) const;

  Vocabulary ids_;                   // by bytes
  std::vector<std::string> tokens_;  // bytes by id, "" where there is none
  TiktokenEncoding encoding_;
  AddedTokens special_tokens_;
  std::unique_ptr<PreTokenizer> words_of_;
  ByteBpe bpe_;
  bool add_bos_ = false, add_eos_ = false;
  mutable WordCache words_;
};

/// Whether a file begins as one of ranks does: a SentencePiece model, which may have the same name, does not.
bool looks_like_tiktoken(std::string_view bytes);

}  // namespace ingot::data
