// A tokenizer for tests.
#pragma once

#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace ingot::eval {

/// A token for each byte, but " a" is one token; 300 begins, 301 ends.
class Bytes final : public data::Tokenizer {
 public:
  explicit Bytes(bool adds_bos = false) : adds_bos_(adds_bos) { special_.bos = 300, special_.eos = 301; }
  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool is_pair = text.substr(i).starts_with(" a");
      ids.push_back(is_pair ? 299 : static_cast<unsigned char>(text[i]));
      i += is_pair ? 1 : 0;
    }
    return ids;
  }
  std::vector<int32_t> encode_with_special(std::string_view text) const override {
    auto ids = encode(text);
    if (adds_bos_) ids.insert(ids.begin(), 300);
    return ids;
  }
  std::string decode(std::span<const int32_t> ids, bool keep_special) const override {
    std::string text;
    for (const int32_t id : ids)
      if (id < 256) text += static_cast<char>(id);
      else if (id == 299) text += " a";
      else if (keep_special) text += "<" + std::to_string(id) + ">";
    return text;
  }
  int32_t vocab_size() const override { return 302; }
  std::string piece(int32_t id) const override { return std::to_string(id); }
  int32_t id_of(std::string_view) const override { return -1; }

 private:
  bool adds_bos_;
};

}  // namespace ingot::eval
