#include <algorithm>
#include <array>
#include <utility>

#include "data/bpe_merges.h"
#include "data/hugging_face/byte_level.h"
#include "data/hugging_face/fields.h"
#include "data/hugging_face/model.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

using base::DataError;

std::pair<std::string, std::string> pair_in(const nlohmann::json& merge, size_t number) {
  if (merge.is_array() && merge.size() == 2) return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  const auto text = merge.get<std::string>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    throw DataError("its merge {} ('{}') is not a pair", number, text);
  return {text.substr(0, space), text.substr(space + 1)};
}

// `prefix`: what all tokens have that do not begin a word.
std::vector<BpeMerge> read_merges(const nlohmann::json& list, const Vocabulary& vocabulary, const std::string& prefix) {
  std::vector<BpeMerge> merges;
  for (size_t number = 0; number < list.size(); ++number) {
    if (list[number].is_string() && list[number].get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = pair_in(list[number], number);
    if (!right.starts_with(prefix)) throw DataError("its merge {} ('{}' '{}') does not continue a word", number, left, right);
    const BpeMerge merge{vocabulary.find(left), vocabulary.find(right), static_cast<int32_t>(number),
                         vocabulary.find(left + right.substr(prefix.size()))};
    if (merge.left < 0 || merge.right < 0 || merge.result < 0)
      throw DataError("its merge {} ('{}' '{}') uses a token that is not in the vocabulary", number, left, right);
    merges.push_back(merge);
  }
  return merges;
}

class Bpe : public TokenModel {
 public:
  explicit Bpe(const nlohmann::json& json)
      : prefix_(field_or<std::string>(json, "continuing_subword_prefix", "")),
        suffix_(field_or<std::string>(json, "end_of_word_suffix", "")),
        fuse_unk_(field_or(json, "fuse_unk", false)),
        ignore_merges_(field_or(json, "ignore_merges", false)) {
    if (field_or(json, "dropout", 0.0) != 0) throw DataError("its BPE has dropout, which makes ids random: set it to null");
    for (const auto& [token, id] : json.at("vocab").items()) vocabulary_.add(token, id.template get<int64_t>());
    const auto unk = field_or<std::string>(json, "unk_token", "");
    if (!unk.empty()) unk_ = vocabulary_.find(unk);
    if (field_or(json, "byte_fallback", false)) bytes_ = vocabulary_.byte_ids();
    merges_ = BpeMerges(read_merges(json.at("merges"), vocabulary_, prefix_));
    words_are_independent_ =
        prefix_.empty() && suffix_.empty() && !ignore_merges_ && (!bytes_.empty() || !fuse_unk_) && !vocabulary_.crosses_words();
  }

  bool words_are_independent() const override { return words_are_independent_; }
  int32_t unk_id() const override { return unk_; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    if (ignore_merges_) {
      if (const int32_t id = vocabulary_.find(text); id >= 0) return ids.push_back(id);
    }
    const size_t before = ids.size();
    add_characters(text, ids);
    ids.resize(before + merges_.apply(std::span(ids).subspan(before)));
  }

 protected:
  // One id per character: its token, its bytes, or the unknown token; a run of unknown ones may count as one.
  void add_characters(std::string_view text, std::vector<int32_t>& ids) const {
    bool unknown_before = false;
    for (size_t at = 0; at < text.size();) {
      const auto length = static_cast<size_t>(utf8_length(text[at]));
      const std::string_view character = text.substr(at, length);
      const bool first = at == 0, last = at + length == text.size();
      at += length;
      int32_t id = -1;
      if ((first || prefix_.empty()) && (!last || suffix_.empty())) id = vocabulary_.find(character);
      else id = vocabulary_.find((first ? "" : prefix_) + std::string(character) + (last ? suffix_ : ""));
      if (id >= 0) {
        ids.push_back(id);
      } else if (!bytes_.empty()) {
        for (const char byte : character) ids.push_back(bytes_[static_cast<unsigned char>(byte)]);
      } else if (unk_ >= 0 && !(fuse_unk_ && unknown_before)) {
        ids.push_back(unk_);
      }
      unknown_before = id < 0;
    }
  }

  std::string prefix_, suffix_;
  bool fuse_unk_, ignore_merges_, words_are_independent_ = false;
  int32_t unk_ = -1;
  std::vector<int32_t> bytes_;  // of byte fallback, by byte; empty without it
  BpeMerges merges_;
};

class ByteLevelBpe : public Bpe {
 public:
  explicit ByteLevelBpe(const nlohmann::json& json) : Bpe(json) {
    for (size_t byte = 0; byte < byte_ids_.size(); ++byte)
      byte_ids_[byte] = vocabulary_.find(bytes_to_byte_level(std::string(1, static_cast<char>(byte))));
    if (!is_complete()) return;
    bytes_bpe_ = ByteBpe(byte_ids_, std::move(merges_));
    if (ignore_merges_) bytes_bpe_.keep_whole(tokens());
  }

  bool is_complete() const {
    return prefix_.empty() && suffix_.empty() && std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  }
  bool words_are_independent() const override { return false; }

  void encode(std::string_view bytes, std::vector<int32_t>& ids) const override { bytes_bpe_.encode(bytes, ids); }

 private:
  std::vector<std::pair<std::string, int32_t>> tokens() const {
    std::vector<std::pair<std::string, int32_t>> tokens;
    for (const auto& [token, id] : vocabulary_.entries()) {
      if (std::string bytes; append_byte_level(token, bytes)) tokens.emplace_back(bytes, id);
    }
    return tokens;
  }

  std::array<int32_t, 256> byte_ids_{};
  ByteBpe bytes_bpe_;
};

}  // namespace

std::unique_ptr<TokenModel> make_byte_level_bpe(const nlohmann::json& json) {
  if (kind_of_model(json) != "BPE") return nullptr;
  auto model = std::make_unique<ByteLevelBpe>(json);
  return model->is_complete() ? std::move(model) : nullptr;
}

std::unique_ptr<TokenModel> make_bpe(const nlohmann::json& json) { return std::make_unique<Bpe>(json); }

}  // namespace ingot::data
