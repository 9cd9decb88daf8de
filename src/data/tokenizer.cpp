#include "data/tokenizer.h"

#include "base/error.h"
#include "data/hugging_face/tokenizer.h"
#include "data/sentencepiece_tokenizer.h"

namespace ingot::data {

using base::DataError;

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path) {
  if (!fs::exists(path)) throw DataError("the tokenizer {} does not exist; make one with 'ingot data train-tokenizer'", path.string());
  if (!fs::is_directory(path)) {
    if (path.extension() == ".json") return std::make_unique<HuggingFaceTokenizer>(path);
    return std::make_unique<SentencePieceTokenizer>(path);
  }
  if (fs::exists(path / "tokenizer.json")) return std::make_unique<HuggingFaceTokenizer>(path / "tokenizer.json");
  if (fs::exists(path / "tokenizer.model")) return std::make_unique<SentencePieceTokenizer>(path / "tokenizer.model");
  throw DataError("the folder {} holds neither tokenizer.json nor tokenizer.model", path.string());
}

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD: the end of an unfinished sequence of bytes
constexpr size_t kLongestHeld = 16;                        // no character needs more byte pieces: what comes after is no UTF-8

}  // namespace

// A piece may look at its neighbour (a leading space goes away at the very beginning), so new ids are decoded behind those
// given out last, which began and ended between characters.
std::string StreamDecoder::pending() const {
  const std::string before = tokenizer_.decode(std::span(ids_).first(shown_), keep_special_);
  const std::string now = tokenizer_.decode(ids_, keep_special_);
  if (now.starts_with(before)) return now.substr(before.size());
  return tokenizer_.decode(std::span(ids_).subspan(shown_), keep_special_);  // broken bytes behind it spoiled the context too
}

std::string StreamDecoder::push(int32_t id) {
  ids_.push_back(id);
  std::string text = pending();
  if ((text.empty() || text.ends_with(kReplacement)) && ids_.size() - shown_ < kLongestHeld) return "";
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(shown_));
  shown_ = ids_.size();
  return text;
}

std::string StreamDecoder::finish() {
  std::string text = pending();
  ids_.clear();
  shown_ = 0;
  return text;
}

}  // namespace ingot::data
