#include "gguf/vocabulary.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "base/error.h"
#include "base/files.h"
#include "data/chat/chat_template.h"
#include "data/hugging_face/tokenizer.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/words.h"

namespace ingot::gguf {
namespace {

using base::DataError;
using data::PieceType;
using nlohmann::json;

// ---- which pre-tokenizer ----

// What cuts text into words, step by step: a pattern, "digits" or "byte_level".
std::vector<std::string> steps_of(const json& pre_tokenizer) {
  if (!pre_tokenizer.is_object()) return {};
  const auto type = pre_tokenizer.value("type", "");
  if (type == "Sequence") {
    std::vector<std::string> all;
    for (const auto& each : pre_tokenizer.value("pretokenizers", json::array())) {
      const auto steps = steps_of(each);
      all.insert(all.end(), steps.begin(), steps.end());
    }
    return all;
  }
  if (type == "Split" && pre_tokenizer.contains("pattern") && pre_tokenizer.at("pattern").contains("Regex"))
    return {pre_tokenizer.at("pattern").at("Regex").get<std::string>()};
  if (type == "Digits" && pre_tokenizer.value("individual_digits", false)) return {"digits"};
  if (type == "ByteLevel" && !pre_tokenizer.value("add_prefix_space", true))
    return {pre_tokenizer.value("use_regex", true) ? "byte_level" : "bytes"};
  return {"another: " + type};
}

// The patterns of published tokenizers that llama.cpp has names for.
const char* const kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const char* const kWordOfLetters = R"([^\r\n\p{L}\p{N}]?\p{L}+)";
const char* const kRest = R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
std::string by_digits(const char* digits) { return std::string(kContractions) + "|" + kWordOfLetters + "|" + digits + "|" + kRest; }
// Words by case, with or without an English contraction behind them.
std::string by_case(const std::string& contraction, const char* digits) {
  const std::string upper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])", lower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])", before = R"([^\r\n\p{L}\p{N}]?)";
  return before + upper + "*" + lower + "+" + contraction + "|" + before + upper + "+" + lower + "*" + contraction + "|" + digits +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

// ---- pieces ----

struct Pieces {
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;

  /// Of a model that has ids beyond the tokenizer's, which no text becomes.
  explicit Pieces(int64_t count) {
    const auto size = static_cast<size_t>(count);
    for (size_t id = 0; id < size; ++id) texts.push_back("[PAD" + std::to_string(id) + "]");
    scores.assign(size, 0);
    types.assign(size, static_cast<int32_t>(PieceType::unused));
  }
  void set(int64_t id, const std::string& text, PieceType type, double score = 0) {
    if (id < 0 || id >= static_cast<int64_t>(texts.size()))
      throw base::ModelError("the tokenizer has the token '{}' of id {}, but the model knows {}; is it another model's? (--tokenizer)",
                             text, id, texts.size());
    const auto at = static_cast<size_t>(id);
    texts[at] = text, types[at] = static_cast<int32_t>(type), scores[at] = static_cast<float>(score);
  }
};

void set_added(Pieces& pieces, const json& file) {
  for (const auto& token : file.value("added_tokens", json::array()))
    pieces.set(token.at("id").get<int64_t>(), token.at("content").get<std::string>(),
               token.value("special", false) ? PieceType::control : PieceType::user_defined);
}

// ["a", "b"] or "a b", whichever the file has.
std::pair<std::string, std::string> merge_of(const json& merge) {
  if (merge.is_array()) return {merge.at(0).get<std::string>(), merge.at(1).get<std::string>()};
  const auto text = merge.get<std::string>();
  const auto space = text.find(' ', 1);
  return {text.substr(0, space), space == std::string::npos ? "" : text.substr(space + 1)};
}

PieceType type_of(const std::string& piece, const std::string& unknown) {
  if (data::byte_of_piece(piece) >= 0) return PieceType::byte;
  return piece == unknown ? PieceType::unknown : PieceType::normal;
}

void require_bytes(const std::vector<std::string>& pieces, const std::string& where) {
  int bytes = 0;
  for (const auto& piece : pieces) bytes += data::byte_of_piece(piece) >= 0 ? 1 : 0;
  if (bytes != 256)
    throw DataError(
        "{} has {} pieces for bytes; llama.cpp's tokenizer needs all 256, since it spells what it does not know by them; give "
        "another one with --tokenizer, or --no-tokenizer",
        where, bytes);
}

// ---- the two kinds ----

void add_byte_level(std::vector<Field>& fields, const json& file, const std::string& text, const data::Tokenizer& tokenizer, int64_t count,
                    std::vector<std::string>& differences) {
  const auto name = pre_tokenizer_name(text);
  if (!name)
    throw DataError(
        "{} cuts text into words by patterns that are none of llama.cpp's known here (gpt-2, smollm, llama-bpe, smaug-bpe, qwen2, "
        "gpt-4o, tekken); give another one with --tokenizer, or --no-tokenizer",
        tokenizer.path().string());
  const auto normalizer = file.value("normalizer", json());
  const auto form = normalizer.is_object() ? normalizer.value("type", "") : "";
  if (form == "NFC") differences.emplace_back("it normalises text to NFC, llama.cpp does not");
  else if (!form.empty())
    throw DataError(
        "{} normalises text ({}), which llama.cpp does not with such tokenizers; give another one with --tokenizer, or --no-tokenizer",
        tokenizer.path().string(), form);
  Pieces pieces(count);
  for (const auto& [piece, id] : file.at("model").at("vocab").items()) pieces.set(id.get<int64_t>(), piece, PieceType::normal);
  set_added(pieces, file);
  std::vector<std::string> merges;
  for (const auto& merge : file.at("model").at("merges")) {
    const auto [left, right] = merge_of(merge);
    merges.push_back(left + " " + right);
  }
  fields.push_back({"tokenizer.ggml.model", "gpt2"});
  fields.push_back({"tokenizer.ggml.pre", *name});
  fields.push_back({"tokenizer.ggml.tokens", pieces.texts});
  fields.push_back({"tokenizer.ggml.token_type", pieces.types});
  fields.push_back({"tokenizer.ggml.merges", merges});
}

void add_scored(std::vector<Field>& fields, const Pieces& pieces, const data::Tokenizer& tokenizer) {
  require_bytes(pieces.texts, tokenizer.path().string());
  const auto ids = tokenizer.encode("a");
  fields.push_back({"tokenizer.ggml.model", "llama"});
  fields.push_back({"tokenizer.ggml.pre", "default"});
  fields.push_back({"tokenizer.ggml.tokens", pieces.texts});
  fields.push_back({"tokenizer.ggml.scores", pieces.scores});
  fields.push_back({"tokenizer.ggml.token_type", pieces.types});
  fields.push_back({"tokenizer.ggml.add_space_prefix", !ids.empty() && tokenizer.piece(ids[0]).starts_with(data::kWordMark)});
}

const char* const kBestWay = "it takes the best way through a text's pieces; llama.cpp's joins the best neighbours, which may be others";

// llama.cpp joins the two neighbours whose union has the best score: for a BPE that comes with merges, the first merge that makes a piece.
void add_pieces_of_json(std::vector<Field>& fields, const json& file, const data::Tokenizer& tokenizer, int64_t count,
                        std::vector<std::string>& differences) {
  const auto& model = file.at("model");
  Pieces pieces(count);
  if (model.at("vocab").is_array()) {
    differences.emplace_back(kBestWay);
    const int64_t unknown = model.contains("unk_id") && model.at("unk_id").is_number_integer() ? model.at("unk_id").get<int64_t>() : -1;
    int64_t id = 0;
    for (const auto& entry : model.at("vocab")) {
      const auto piece = entry.at(0).get<std::string>();
      pieces.set(id, piece, id == unknown ? PieceType::unknown : type_of(piece, ""), entry.at(1).get<double>());
      ++id;
    }
  } else {
    std::unordered_map<std::string, int64_t> ranks;
    for (const auto& merge : model.at("merges")) {
      const auto [left, right] = merge_of(merge);
      ranks.emplace(left + right, static_cast<int64_t>(ranks.size()));
    }
    const auto unknown = model.contains("unk_token") && model.at("unk_token").is_string() ? model.at("unk_token").get<std::string>() : "";
    for (const auto& [piece, id] : model.at("vocab").items()) {
      const auto rank = ranks.find(piece);
      pieces.set(id.get<int64_t>(), piece, type_of(piece, unknown), rank == ranks.end() ? 0.0 : -static_cast<double>(rank->second));
    }
  }
  const auto before = pieces.types;
  set_added(pieces, file);
  for (size_t id = 0; id < before.size(); ++id)
    if (before[id] == static_cast<int32_t>(PieceType::unknown) || before[id] == static_cast<int32_t>(PieceType::byte))
      pieces.types[id] = before[id];
  add_scored(fields, pieces, tokenizer);
}

void add_sentencepiece(std::vector<Field>& fields, const data::SentencePieceTokenizer& tokenizer, int64_t count,
                       std::vector<std::string>& differences) {
  const auto& model = tokenizer.model();
  if (model.algorithm == data::SentencePieceModel::Algorithm::unigram) differences.emplace_back(kBestWay);
  if (!model.character_map.empty())
    differences.push_back("it normalises text by the rules '" + model.normalizer_name + "', llama.cpp does not");
  if (model.remove_extra_whitespaces) differences.emplace_back("it removes extra spaces, llama.cpp does not");
  Pieces pieces(count);
  int64_t id = 0;
  for (const auto& piece : model.pieces) pieces.set(id++, piece.text, piece.type, piece.score);
  add_scored(fields, pieces, tokenizer);
}

void add_special(std::vector<Field>& fields, const data::SpecialTokens& special, const models::ModelConfig& config) {
  const auto add = [&](const char* name, int64_t id) {
    if (id >= 0 && id < config.vocab_size)
      fields.push_back({std::string("tokenizer.ggml.") + name + "_token_id", static_cast<uint32_t>(id)});
  };
  const auto own = [](int64_t id, int64_t otherwise) { return id >= 0 ? id : otherwise; };
  add("bos", own(special.bos, config.bos_id));
  add("eos", own(special.eos, config.eos_id));
  add("padding", own(special.pad, config.pad_id));
  add("unknown", special.unk);
}

}  // namespace

std::optional<std::string> pre_tokenizer_name(const std::string& text) {
  const auto file = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object()) return {};
  const auto steps = steps_of(file.value("pre_tokenizer", json()));
  const bool takes_whole_words = file.value("model", json::object()).value("ignore_merges", false);
  const std::vector<std::pair<std::vector<std::string>, std::string>> known = {
      {{"byte_level"}, "gpt-2"},
      {{"digits", "byte_level"}, "smollm"},
      // One pattern; only the first of the two takes a word that is a token before it looks at merges.
      {{by_digits(R"(\p{N}{1,3})"), "bytes"}, takes_whole_words ? "llama-bpe" : "smaug-bpe"},
      {{by_digits(R"(\p{N})"), "bytes"}, "qwen2"},
      {{by_case(std::string(kContractions) + "?", R"(\p{N}{1,3})"), "bytes"}, "gpt-4o"},
      {{by_case("", R"(\p{N})"), "bytes"}, "tekken"}};
  for (const auto& [patterns, name] : known)
    if (steps == patterns) return name;
  return {};
}

std::vector<Field> vocabulary_fields(const data::Tokenizer* tokenizer, const models::ModelConfig& config,
                                     std::vector<std::string>& differences) {
  std::vector<Field> fields;
  if (!tokenizer) {
    fields.push_back({"tokenizer.ggml.model", "no_vocab"});
    add_special(fields, {}, config);
    return fields;
  }
  if (const auto* sentencepiece = dynamic_cast<const data::SentencePieceTokenizer*>(tokenizer)) {
    add_sentencepiece(fields, *sentencepiece, config.vocab_size, differences);
  } else {
    const auto text = base::read_file(tokenizer->path());
    const auto file = json::parse(text);
    const bool has_bytes = file.at("model").value("byte_fallback", false);
    const bool is_bpe = file.at("model").at("vocab").is_object();
    if (is_bpe && !has_bytes) add_byte_level(fields, file, text, *tokenizer, config.vocab_size, differences);
    else add_pieces_of_json(fields, file, *tokenizer, config.vocab_size, differences);
  }
  const auto& special = tokenizer->special();
  add_special(fields, special, config);
  const auto plain = tokenizer->encode("a"), dressed = tokenizer->encode_with_special("a");
  const bool has_more = dressed.size() > plain.size();
  fields.push_back({"tokenizer.ggml.add_bos_token", has_more && dressed.front() == special.bos});
  fields.push_back({"tokenizer.ggml.add_eos_token", has_more && dressed.back() == special.eos});
  if (const auto chat = data::chat::ChatTemplate::of_folder(tokenizer->path().parent_path()))
    fields.push_back({"tokenizer.chat_template", chat->source()});
  return fields;
}

}  // namespace ingot::gguf
