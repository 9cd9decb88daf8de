#include "data/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/utf8.h"
#include "data/words.h"

namespace ingot::data {

using base::DataError;

namespace {

constexpr int64_t kLargestModelBytes = int64_t{256} << 20;

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(const fs::path& path)
    : model_(SentencePieceModel::parse(base::read_file(path, kLargestModelBytes), path.string())) {
  path_ = path;
  open();
  if (const fs::path config = path.parent_path() / "tokenizer_config.json"; fs::exists(config))
    read_configuration(base::read_file(config, kLargestModelBytes), config);
}

SentencePieceTokenizer::SentencePieceTokenizer(std::string_view bytes, const fs::path& origin, const std::string& config)
    : model_(SentencePieceModel::parse(bytes, origin.string())) {
  path_ = origin;
  open();
  if (!config.empty()) read_configuration(config, origin.parent_path() / "tokenizer_config.json");
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::open() {
  processor_ = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = processor_->LoadFromSerializedProto(model_.serialize());
  if (!status.ok()) throw DataError("{} is refused by SentencePiece: {}", path_.string(), status.error_message());
  special_ = {processor_->bos_id(), processor_->eos_id(), processor_->pad_id(), processor_->unk_id()};
  is_plain_ = model_.is_lossless() && !model_.add_dummy_prefix;
  by_words_ = is_plain_;
  Vocabulary symbols;
  for (size_t id = 0; id < model_.pieces.size(); ++id) {
    const auto& piece = model_.pieces[id];
    if (piece.type == PieceType::user_defined) symbols.add(piece.text, static_cast<int64_t>(id));
    else if (crosses_word_border(piece.text)) by_words_ = false;
  }
  // The library's unigram prefers such pieces without insisting on them; other tokenizers, and an export, insist.
  if (is_plain_ && !symbols.entries().empty()) symbols_ = std::make_unique<PrefixTree>(symbols);
}

std::vector<int32_t> SentencePieceTokenizer::encode_whole(std::string_view text) const {
  std::vector<int32_t> ids;
  const auto status = processor_->Encode(text, &ids);
  if (!status.ok()) throw DataError("{} cannot encode a text of {} bytes: {}", path_.string(), text.size(), status.error_message());
  return ids;
}

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text) const {
  std::string repaired;
  text = valid_utf8(text, repaired);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  size_t done = 0;
  for (size_t at = 0; symbols_ && at < text.size();) {
    size_t length = 0;
    int32_t symbol = -1;
    symbols_->visit_prefixes(text.substr(at), [&](size_t bytes, int32_t id) { length = bytes, symbol = id; });
    if (symbol < 0) {
      ++at;
      continue;
    }
    encode_part(text.substr(done, at - done), ids);
    ids.push_back(symbol);
    done = at += length;
  }
  encode_part(text.substr(done), ids);
  return ids;
}

void SentencePieceTokenizer::encode_part(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  const auto encode = [this](std::string_view part, std::vector<int32_t>& out) {
    const auto found = encode_whole(part);
    out.insert(out.end(), found.begin(), found.end());
  };
  auto words = words_.lease();
  if (by_words_) for_each_word(text, [&](std::string_view word) { words.append(word, ids, encode); });
  else words.append(text, ids, encode);
}

void SentencePieceTokenizer::read_configuration(const std::string& text, const fs::path& origin) {
  try {
    const auto json = nlohmann::json::parse(text);
    const auto flag = [&](const char* name) { return json.contains(name) && json.at(name).is_boolean() && json.at(name).get<bool>(); };
    add_bos_ = flag("add_bos_token") && special_.bos >= 0;
    add_eos_ = flag("add_eos_token") && special_.eos >= 0;
  } catch (const nlohmann::json::exception& wrong) {
    throw DataError("{} cannot be read: {}", origin.string(), wrong.what());
  }
}

std::vector<int32_t> SentencePieceTokenizer::encode_with_special(std::string_view text) const {
  auto ids = encode(text);
  if (add_bos_) ids.insert(ids.begin(), special_.bos);
  if (add_eos_) ids.push_back(special_.eos);
  return ids;
}

std::string SentencePieceTokenizer::decode(std::span<const int32_t> ids, bool keep_special) const {
  std::string text;
  std::vector<int32_t> run;
  const auto flush = [&] {
    std::string part;
    const auto status = processor_->Decode(run, &part);
    if (!status.ok()) throw DataError("{} cannot decode: {}", path_.string(), status.error_message());
    text += part;
    run.clear();
  };
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) throw DataError("{}: there is no token {} in a vocabulary of {}", path_.string(), id, vocab_size());
    if (model_.pieces[static_cast<size_t>(id)].type != PieceType::control) {
      run.push_back(id);
    } else if (keep_special) {
      flush();
      text += model_.pieces[static_cast<size_t>(id)].text;
    }
  }
  flush();
  return text;
}

std::string SentencePieceTokenizer::piece(int32_t id) const {
  if (id < 0 || id >= vocab_size()) throw DataError("{}: there is no token {} in a vocabulary of {}", path_.string(), id, vocab_size());
  return model_.pieces[static_cast<size_t>(id)].text;
}

int32_t SentencePieceTokenizer::id_of(std::string_view piece) const {
  const int32_t id = processor_->PieceToId(piece);
  return model_.pieces[static_cast<size_t>(id)].text == piece ? id : -1;
}

}  // namespace ingot::data
