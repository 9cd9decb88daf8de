#include "data/hugging_face/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "data/hugging_face/fields.h"
#include "data/hugging_face/special_tokens.h"
#include "data/utf8.h"
#include "data/words.h"

namespace ingot::data {

using base::DataError;

static constexpr int64_t kLargestFileBytes = int64_t{128} << 20;  // published ones end at 33 MiB, and JSON in memory is many times as large

HuggingFaceTokenizer::HuggingFaceTokenizer(const fs::path& path) {
  path_ = path;
  const fs::path config = path.parent_path() / "tokenizer_config.json";
  load(base::read_file(path, kLargestFileBytes), fs::exists(config) ? base::read_file(config, kLargestFileBytes) : "");
}

HuggingFaceTokenizer::HuggingFaceTokenizer(const std::string& text, const std::string& config, const fs::path& origin) {
  path_ = origin;
  load(text, config);
}

void HuggingFaceTokenizer::load(const std::string& text, const std::string& config) {
  try {
    const auto json = nlohmann::json::parse(text);
    static const nlohmann::json none;
    const auto component = [&](const char* name) -> const nlohmann::json& { return json.contains(name) ? json.at(name) : none; };
    if (ends_in_byte_level(component("pre_tokenizer"))) model_ = make_byte_level_bpe(json.at("model"));
    const bool takes_bytes = model_ != nullptr;
    if (!takes_bytes) model_ = make_token_model(json.at("model"));
    normalizer_ = make_normalizer(component("normalizer"));
    pre_tokenizer_ = make_pre_tokenizer(component("pre_tokenizer"), takes_bytes);
    decoder_ = make_decoder(component("decoder"));
    if (json.contains("added_tokens")) added_ = AddedTokens(json.at("added_tokens"), *normalizer_);
    for (const auto& [token, id] : model_->vocabulary().entries()) pieces_[id] = token;
    for (const auto& token : added_.tokens()) pieces_[token.id] = token.spelling;
    for (const auto& [id, token] : pieces_) vocab_size_ = std::max(vocab_size_, id + 1);
    if (const auto& processor = component("post_processor"); !processor.is_null()) read_template(processor, 0);
    special_ = special_tokens_of(config.empty() ? nlohmann::json::object() : nlohmann::json::parse(config),
                                 [&](std::string_view name) { return id_of(name); });
    if (special_.unk < 0) special_.unk = model_->unk_id();
  } catch (const nlohmann::json::exception& wrong) {
    throw DataError("{} is not a tokenizer.json that can be read: {}", path_.string(), wrong.what());
  } catch (const DataError& wrong) {
    throw DataError("{} cannot be used: {}", path_.string(), wrong.what());
  }
}

void HuggingFaceTokenizer::read_template(const nlohmann::json& processor, int depth) {
  check_depth(depth);
  const std::string kind = kind_of(processor);
  if (kind == "ByteLevel") return;  // it moves offsets, not ids
  if (kind == "Sequence") {
    for (const auto& part : processor.at("processors")) read_template(part, depth + 1);
  } else if (kind == "TemplateProcessing") {
    bool before = true;
    for (const auto& item : processor.at("single")) {
      if (item.contains("Sequence")) {
        before = false;
        continue;
      }
      const auto& token = processor.at("special_tokens").at(item.at("SpecialToken").at("id").get<std::string>());
      for (const auto& id : token.at("ids")) (before ? template_before_ : template_after_).push_back(id.get<int32_t>());
    }
  } else if (kind == "BertProcessing" || kind == "RobertaProcessing") {
    template_before_.push_back(processor.at("cls").at(1).get<int32_t>());
    template_after_.push_back(processor.at("sep").at(1).get<int32_t>());
  } else {
    refuse_kind("post-processor", kind);
  }
}

std::vector<int32_t> HuggingFaceTokenizer::encode(std::string_view text) const {
  std::string repaired;
  text = valid_utf8(text, repaired);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  for (const auto& part : added_.cut(text, /*normalized=*/false)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    const std::string normal = normalizer_->apply(std::string(text.substr(part.begin, part.end - part.begin)));
    for (const auto& inner : added_.cut(normal, /*normalized=*/true)) {
      if (inner.id >= 0) ids.push_back(inner.id);
      else
        encode_segment({std::string_view(normal).substr(inner.begin, inner.end - inner.begin), part.begin == 0 && inner.begin == 0}, ids);
    }
  }
  return ids;
}

void HuggingFaceTokenizer::encode_segment(Segment segment, std::vector<int32_t>& ids) const {
  std::vector<Segment> segments{segment};
  TextStore made;
  pre_tokenizer_->apply(segments, made);
  const auto encode = [this](std::string_view word, std::vector<int32_t>& out) { model_->encode(word, out); };
  auto words = words_.lease();
  if (!model_->words_are_independent()) {
    std::erase_if(segments, [](const Segment& piece) { return piece.text.empty(); });
    return words.append_all(
        segments, [](const Segment& piece) { return piece.text; }, ids, encode);
  }
  for (const auto& piece : segments) for_each_word(piece.text, [&](std::string_view word) { words.append(word, ids, encode); });
}

std::vector<int32_t> HuggingFaceTokenizer::encode_with_special(std::string_view text) const {
  auto ids = template_before_;
  const auto inner = encode(text);
  ids.insert(ids.end(), inner.begin(), inner.end());
  ids.insert(ids.end(), template_after_.begin(), template_after_.end());
  return ids;
}

std::string HuggingFaceTokenizer::decode(std::span<const int32_t> ids, bool keep_special) const {
  std::vector<std::string> tokens;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size_) throw DataError("{}: there is no token {} in a vocabulary of {}", path_.string(), id, vocab_size_);
    const auto found = pieces_.find(id);
    if (found != pieces_.end() && (keep_special || !added_.is_special(id))) tokens.push_back(found->second);
  }
  decoder_->apply(tokens);
  std::string text;
  for (const auto& token : tokens) text += token;
  return text;
}

std::string HuggingFaceTokenizer::piece(int32_t id) const {
  const auto found = pieces_.find(id);
  if (id < 0 || id >= vocab_size_) throw DataError("{}: there is no token {} in a vocabulary of {}", path_.string(), id, vocab_size_);
  return found == pieces_.end() ? "" : found->second;
}

int32_t HuggingFaceTokenizer::id_of(std::string_view piece) const {
  for (const auto& token : added_.tokens()) {
    if (token.content == piece) return token.id;
  }
  return model_->vocabulary().find(piece);
}

}  // namespace ingot::data
