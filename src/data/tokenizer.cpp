#include "data/tokenizer.h"

#include <fstream>

#include "base/error.h"
#include "data/hugging_face/tokenizer.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/tiktoken_tokenizer.h"

namespace ingot::data {

using base::DataError;

namespace {

std::string first_bytes_of(const fs::path& path) {
  std::string bytes(4096, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

std::unique_ptr<Tokenizer> load_file(const fs::path& path) {
  if (path.extension() == ".json") return std::make_unique<HuggingFaceTokenizer>(path);
  if (path.extension() == ".tiktoken" || looks_like_tiktoken(first_bytes_of(path))) return std::make_unique<TiktokenTokenizer>(path);
  return std::make_unique<SentencePieceTokenizer>(path);
}

// The one file of ranks in a folder.
fs::path ranks_in(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".tiktoken" || entry.path().filename() == "tiktoken.model") found.push_back(entry.path());
  }
  if (found.empty()) throw DataError("the folder {} holds no tokenizer.json, tokenizer.model or .tiktoken file", folder.string());
  if (found.size() > 1)
    throw DataError("the folder {} holds {} .tiktoken files: name the one that is meant", folder.string(), found.size());
  return found[0];
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path) {
  if (!fs::exists(path)) throw DataError("the tokenizer {} does not exist; make one with 'ingot data train-tokenizer'", path.string());
  if (!fs::is_directory(path)) return load_file(path);
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(path / name)) return load_file(path / name);
  }
  return load_file(ranks_in(path));
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
