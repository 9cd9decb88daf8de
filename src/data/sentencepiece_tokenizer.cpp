#include "data/sentencepiece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>

#include "base/error.h"
#include "data/utf8.h"
#include "data/words.h"

namespace ingot::data {

using base::DataError;

namespace {

constexpr int64_t kLargestModelBytes = int64_t{256} << 20;

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(const fs::path& path) : model_(SentencePieceModel::parse(base::read_file(path, kLargestModelBytes), path.string())) {
  path_ = path;
  open();
}

SentencePieceTokenizer::SentencePieceTokenizer(std::string_view bytes, const fs::path& origin) : model_(SentencePieceModel::parse(bytes, origin.string())) {
  path_ = origin;
  open();
}

SentencePieceTokenizer::~SentencePieceTokenizer() = default;

void SentencePieceTokenizer::open() {
  processor_ = std::make_unique<sentencepiece::SentencePieceProcessor>();
  const auto status = processor_->LoadFromSerializedProto(model_.serialize());
  if (!status.ok()) throw DataError("{} is refused by SentencePiece: {}", path_.string(), status.error_message());
  special_ = {processor_->bos_id(), processor_->eos_id(), processor_->pad_id(), processor_->unk_id()};
  by_words_ = model_.is_lossless() && !model_.add_dummy_prefix &&
              std::none_of(model_.pieces.begin(), model_.pieces.end(), [](const SentencePiece& piece) { return crosses_word_border(piece.text); });
}

std::vector<int32_t> SentencePieceTokenizer::encode_whole(std::string_view text) const {
  std::vector<int32_t> ids;
  const auto status = processor_->Encode(text, &ids);
  if (!status.ok()) throw DataError("{} cannot encode a text of {} bytes: {}", path_.string(), text.size(), status.error_message());
  return ids;
}

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text) const {
  std::string mended;
  if (!is_valid_utf8(text)) {
    int64_t replaced = 0;
    mended = replace_invalid_utf8(text, replaced);
    text = mended;
  }
  if (!by_words_) return encode_whole(text);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  for_each_word(text, [&](std::string_view word) { words_.append(word, ids, [this](std::string_view w) { return encode_whole(w); }); });
  return ids;
}

std::vector<int32_t> SentencePieceTokenizer::encode_with_special(std::string_view text) const {
  auto ids = encode(text);
  if (special_.bos >= 0) ids.insert(ids.begin(), special_.bos);
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
