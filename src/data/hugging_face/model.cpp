#include "data/hugging_face/model.h"

#include "data/hugging_face/fields.h"

namespace ingot::data {

std::string kind_of_model(const nlohmann::json& json) {
  if (json.contains("type")) return kind_of(json);
  if (json.contains("merges")) return "BPE";
  return json.contains("max_input_chars_per_word") ? "WordPiece" : "";
}

std::unique_ptr<TokenModel> make_token_model(const nlohmann::json& json) {
  const std::string kind = kind_of_model(json);
  if (kind == "BPE") return make_bpe(json);
  if (kind == "Unigram") return make_unigram(json);
  if (kind == "WordPiece") return make_wordpiece(json);
  if (kind == "WordLevel") return make_word_level(json);
  refuse_kind("model", kind);
}

}  // namespace ingot::data
