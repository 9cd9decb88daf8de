// A tokenizer for tests, whose ids can be checked without any library.
#pragma once

#include <string>
#include <vector>

#include "data/indexed_dataset.h"
#include "data/tokenizer.h"

namespace ingot::data {

// One token per byte, offset by 3; eos 1, bos 2.
class ByteTokenizer : public Tokenizer {
 public:
  /// `path`: of a file, whose content counts as the tokenizer's.
  explicit ByteTokenizer(const fs::path& path = {}, bool eos = true) {
    special_ = {2, eos ? 1 : -1, 0, -1};
    path_ = path;
  }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c) + 3);
    return ids;
  }
  std::vector<int32_t> encode_with_special(std::string_view text) const override { return encode(text); }
  std::string decode(std::span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) text += id < 3 ? std::string("|") : std::string(1, static_cast<char>(id - 3));
    return text;
  }
  int32_t vocab_size() const override { return 259; }
  std::string piece(int32_t) const override { return ""; }
  int32_t id_of(std::string_view) const override { return -1; }
};

// The documents of a dataset as one text, "|" where eos stands.
inline std::string tokens_as_text(const fs::path& prefix) {
  const IndexedDataset dataset(prefix);
  std::vector<int32_t> ids(static_cast<size_t>(dataset.tokens()));
  dataset.read(0, ids);
  return ByteTokenizer().decode(ids, true);
}

}  // namespace ingot::data
