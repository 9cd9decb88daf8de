#include "data/hugging_face/special_tokens.h"

#include <nlohmann/json.hpp>

namespace ingot::data {
namespace {

// The text of a token in tokenizer_config.json: "<s>" or {"content": "<s>", …}.
std::string content_of_token(const nlohmann::json& config, const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) return "";
  return found->is_object() ? found->at("content").get<std::string>() : found->get<std::string>();
}

}  // namespace

SpecialTokens special_tokens_of(const nlohmann::json& config, const std::function<int32_t(std::string_view)>& id_of) {
  // Names that say what they are, for files without a configuration.
  const auto choose = [&](const char* field, const std::vector<std::string>& usual) {
    const std::string named = content_of_token(config, field);
    if (!named.empty()) return id_of(named);
    if (config.contains(field)) return -1;
    for (const auto& name : usual) {
      if (const int32_t id = id_of(name); id >= 0) return id;
    }
    return -1;
  };
  SpecialTokens special;
  special.bos = choose("bos_token", {"<bos>", "<s>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]"});
  special.eos = choose("eos_token", {"<eos>", "</s>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>", "[SEP]"});
  special.pad = choose("pad_token", {"<pad>", "<|pad|>", "[PAD]"});
  special.unk = choose("unk_token", {});
  return special;
}

}  // namespace ingot::data
