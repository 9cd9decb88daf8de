#include "data/export_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"
#include "data/hugging_face/tokenizer.h"
#include "data/sentencepiece_tokenizer.h"
#include "data/tiktoken_tokenizer.h"
#include "data/utf8.h"
#include "data/words.h"

namespace ingot::data {
namespace {

using Json = nlohmann::ordered_json;

// Below any sum of scores of a text's pieces: tokens that text itself must never become.
constexpr double kNeverChosen = -1e6;

bool is_single_character(std::string_view text) { return static_cast<size_t>(utf8_length(text[0])) == text.size(); }

// Every character that occurs in a piece is a piece itself: then no merge and no best way ever starts from an unknown one.
bool characters_are_pieces(const SentencePieceModel& model, std::string_view also) {
  std::set<std::string> known;
  for (const auto& piece : model.pieces) {
    if (piece.type == PieceType::normal && is_single_character(piece.text)) known.insert(piece.text);
  }
  const auto all_known = [&](std::string_view text) {
    for (size_t at = 0; at < text.size(); at += static_cast<size_t>(utf8_length(text[at]))) {
      if (!known.contains(std::string(text.substr(at, static_cast<size_t>(utf8_length(text[at])))))) return false;
    }
    return true;
  };
  return all_known(also) && std::all_of(model.pieces.begin(), model.pieces.end(),
                                        [&](const auto& piece) { return piece.type != PieceType::normal || all_known(piece.text); });
}

std::string obstacle(const SentencePieceModel& model) {
  if (!model.character_map.empty()) return fmt::format("it normalises text by the rules '{}'", model.normalizer_name);
  if (model.remove_extra_whitespaces) return "it removes extra spaces";
  if (!model.is_lossless()) return "it does not mark spaces in the usual way";
  if (!model.byte_fallback) return "it has no byte fallback";
  if (std::any_of(model.pieces.begin(), model.pieces.end(), [](const auto& piece) { return piece.type == PieceType::unused; }))
    return "it has unused pieces";
  if (!characters_are_pieces(model, "<0123456789ABCDEFx>")) return "some of its pieces hold characters that are no pieces";
  return "";
}

Json unigram_model(const SentencePieceModel& model, const SpecialTokens& special) {
  Json vocab = Json::array();
  for (const auto& piece : model.pieces)
    vocab.push_back({piece.text, piece.type == PieceType::normal ? static_cast<double>(piece.score) : kNeverChosen});
  return {{"type", "Unigram"}, {"unk_id", special.unk}, {"vocab", vocab}, {"byte_fallback", true}};
}

// SentencePiece merges any two neighbours whose union is a piece, best score first: each way to make a piece is one merge.
Json bpe_merges(const SentencePieceModel& model) {
  struct Pair {
    float score;
    std::string left, right;
  };
  std::set<std::string> normal;
  for (const auto& piece : model.pieces) {
    if (piece.type == PieceType::normal) normal.insert(piece.text);
  }
  std::vector<Pair> pairs;
  for (const auto& piece : model.pieces) {
    if (piece.type != PieceType::normal) continue;
    for (size_t cut = piece.text.size() - 1; cut > 0; --cut) {
      const auto left = piece.text.substr(0, cut), right = piece.text.substr(cut);
      if (normal.contains(left) && normal.contains(right)) pairs.push_back({piece.score, left, right});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.score > b.score; });
  Json merges = Json::array();
  for (const auto& pair : pairs) merges.push_back({pair.left, pair.right});
  return merges;
}

Json bpe_model(const SentencePieceModel& model, const SpecialTokens& special) {
  Json vocab = Json::object();
  for (size_t id = 0; id < model.pieces.size(); ++id) vocab[model.pieces[id].text] = id;
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", model.pieces[static_cast<size_t>(special.unk)].text},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", true},
          {"ignore_merges", false},
          {"vocab", vocab},
          {"merges", bpe_merges(model)}};
}

Json added_tokens(const SentencePieceModel& model) {
  Json added = Json::array();
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto type = model.pieces[id].type;
    if (type == PieceType::normal || type == PieceType::byte) continue;
    added.push_back({{"id", id},
                     {"content", model.pieces[id].text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type != PieceType::user_defined}});
  }
  return added;
}

Json replace(const std::string& what, const std::string& with) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", with}};
}

// Texts that try what could differ: every piece beside itself and beside others, and a few that are no words.
std::vector<std::string> probes(const SentencePieceModel& model) {
  std::vector<std::string> texts = {" \n \t  <0x41> ",
                                    "\xF0\x9F\x98\x80\xE4\xB8\xAD"
                                    "e\xCC\x81",
                                    "\xE2\x96\x81 \xE2\x96\x81", std::string(50, ' ') + std::string(50, 'a')};
  const size_t step = std::max<size_t>(1, model.pieces.size() / 3000);
  std::string before;
  for (size_t id = 0; id < model.pieces.size(); id += step) {
    const auto& piece = model.pieces[id];
    if (piece.type != PieceType::normal && piece.type != PieceType::user_defined) continue;
    texts.push_back(before + piece.text);
    texts.push_back(piece.text + piece.text + piece.text + " " + piece.text);
    before = piece.text;
  }
  return texts;
}

void copy_whole(const fs::path& from, const fs::path& to) {
  if (fs::exists(to) && fs::equivalent(from, to)) return;
  base::write_file_atomically(to, base::read_file(from));
}

void write_configuration(const Tokenizer& tokenizer, const fs::path& folder) {
  const auto& special = tokenizer.special();
  Json names = Json::object();
  for (const auto& [name, id] :
       {std::pair{"bos_token", special.bos}, {"eos_token", special.eos}, {"pad_token", special.pad}, {"unk_token", special.unk}}) {
    if (id >= 0) names[name] = tokenizer.piece(id);
  }
  Json config = names;
  config["add_bos_token"] = config["add_eos_token"] = false;
  config["clean_up_tokenization_spaces"] = false;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  base::write_file_atomically(folder / "special_tokens_map.json", names.dump(2) + "\n");
  base::write_file_atomically(folder / "tokenizer_config.json", config.dump(2) + "\n");
}

void copy_beside(const Tokenizer& tokenizer, const fs::path& folder, bool copies_model) {
  const fs::path source = tokenizer.path().parent_path();
  for (const char* name : {"special_tokens_map.json", "tokenizer.model", "chat_template.jinja", "tokenizer_config.json"}) {
    if (source / name == tokenizer.path() || (!copies_model && std::string_view(name) == "tokenizer.model")) continue;
    if (fs::exists(source / name)) copy_whole(source / name, folder / name);
    else if (std::string_view(name) == "tokenizer_config.json") write_configuration(tokenizer, folder);
  }
}

ExportedTokenizer export_sentencepiece(const SentencePieceTokenizer& tokenizer, const fs::path& folder) {
  ExportedTokenizer result;
  copy_whole(tokenizer.path(), folder / "tokenizer.model");
  write_configuration(tokenizer, folder);
  const std::string json = tokenizer_json_of(tokenizer.model(), tokenizer.special(), result.why_not);
  if (!json.empty()) {
    const HuggingFaceTokenizer again(json, "", folder / "tokenizer.json");
    for (const auto& text : probes(tokenizer.model())) {
      if (again.encode(text) == tokenizer.encode(text)) continue;
      result.why_not = fmt::format("the text '{}' would get other ids", text);
      break;
    }
  }
  result.tokenizer_json = result.why_not.empty();
  if (result.tokenizer_json) base::write_file_atomically(folder / "tokenizer.json", json);
  else base::log_warning("{} is exported as tokenizer.model alone, without tokenizer.json: {}", tokenizer.path().string(), result.why_not);
  return result;
}

// With its settings under names of its own, so that a folder needs no known name.
ExportedTokenizer export_tiktoken(const TiktokenTokenizer& tokenizer, const fs::path& folder) {
  copy_whole(tokenizer.path(), folder / "tokenizer.tiktoken");
  base::write_file_atomically(folder / "tiktoken.json", tokenizer.settings_json());
  std::error_code none;
  for (const char* name : {"tokenizer.json", "tokenizer.model"})  // which whoever loads the folder would take first
    if (!fs::equivalent(folder / name, tokenizer.path(), none)) fs::remove(folder / name, none);
  copy_beside(tokenizer, folder, /*copies_model=*/false);
  return {false, "merges by rank of a .tiktoken file are no list of merges"};
}

}  // namespace

std::string tokenizer_json_of(const SentencePieceModel& model, const SpecialTokens& special, std::string& why_not) {
  why_not = obstacle(model);
  if (!why_not.empty()) return "";
  const std::string mark(kWordMark);
  Json normalizers = Json::array(), decoders = {replace(mark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (model.add_dummy_prefix) {
    normalizers.push_back({{"type", "Prepend"}, {"prepend", mark}});
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  normalizers.push_back(replace(" ", mark));
  const Json json = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added_tokens(model)},
      {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
      {"pre_tokenizer", nullptr},
      {"post_processor", nullptr},
      {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
      {"model", model.algorithm == SentencePieceModel::Algorithm::unigram ? unigram_model(model, special) : bpe_model(model, special)}};
  return json.dump(1) + "\n";
}

ExportedTokenizer export_tokenizer(const Tokenizer& tokenizer, const fs::path& folder) {
  if (const auto* sentencepiece = dynamic_cast<const SentencePieceTokenizer*>(&tokenizer))
    return export_sentencepiece(*sentencepiece, folder);
  if (const auto* tiktoken = dynamic_cast<const TiktokenTokenizer*>(&tokenizer)) return export_tiktoken(*tiktoken, folder);
  copy_whole(tokenizer.path(), folder / "tokenizer.json");
  copy_beside(tokenizer, folder, /*copies_model=*/true);
  return {true, ""};
}

}  // namespace ingot::data
