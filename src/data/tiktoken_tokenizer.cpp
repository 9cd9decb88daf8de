#include "data/tiktoken_tokenizer.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/base64.h"
#include "data/hugging_face/byte_level.h"
#include "data/hugging_face/fields.h"
#include "data/hugging_face/special_tokens.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

using base::DataError;
using Json = nlohmann::json;

constexpr int64_t kLargestFileBytes = int64_t{64} << 20, kLargestRank = 1'000'000;
constexpr size_t kLongestTokenBytes = 1024;  // published ones end at 128 spaces
// Sum of the squared lengths of all tokens: a token of n bytes is cut in n - 1 places, and both sides are looked for. Published encodings
// need a tenth of it at most. There are 2^24 merges of that at most, since there are 10^6 tokens.
constexpr int64_t kMostCutBytes = int64_t{1} << 28;

// What stands in a file, for a message.
std::string shown(std::string_view text) {
  int64_t replaced = 0;
  return replace_invalid_utf8(text.substr(0, 80), replaced);
}

struct Line {
  std::string bytes;
  int64_t rank = 0;
};

// Throws the reason alone.
Line parse_line(std::string_view line) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) throw DataError("it is not a token in base64, a space and a rank");
  const auto bytes = bytes_of_base64(line.substr(0, space));
  if (!bytes) throw DataError("'{}' is not base64", shown(line.substr(0, space)));
  if (bytes->empty() || bytes->size() > kLongestTokenBytes)
    throw DataError("its token has {} bytes: from 1 to {} it may have", bytes->size(), kLongestTokenBytes);
  const std::string_view digits = line.substr(space + 1);
  Line parsed{*bytes, 0};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), parsed.rank);
  if (error != std::errc() || end != digits.data() + digits.size() || parsed.rank < 0 || parsed.rank > kLargestRank)
    throw DataError("'{}' is not a rank from 0 to {}", shown(digits), kLargestRank);
  return parsed;
}

Json parse_json(const std::string& text, const fs::path& path) {
  if (text.empty()) return Json::object();
  auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);  // moved out: copies are recursive
  if (!json.is_object()) throw DataError("{} is not a JSON object", path.string());
  return json;
}

// {"<|endoftext|>": 5} as `special_tokens` has them, or {"5": {"content": "<|endoftext|>"}} as transformers' added_tokens_decoder.
std::map<std::string, int64_t> special_tokens_in(const Json& json) {
  std::map<std::string, int64_t> found;
  if (json.contains("special_tokens") && json.at("special_tokens").is_object())
    return json.at("special_tokens").get<std::map<std::string, int64_t>>();
  if (!json.contains("added_tokens_decoder")) return found;
  for (const auto& [id, token] : json.at("added_tokens_decoder").items())
    found[token.at("content").get<std::string>()] = Json::parse(id).get<int64_t>();
  return found;
}

std::string read_beside(const fs::path& path, const char* name) {
  const fs::path beside = path.parent_path() / name;
  return fs::exists(beside) ? base::read_file(beside, kLargestFileBytes) : "";
}

}  // namespace

bool looks_like_tiktoken(std::string_view bytes) {
  const size_t space = bytes.substr(0, 2 * kLongestTokenBytes).find(' ');
  return space != std::string_view::npos && space > 0 && bytes_of_base64(bytes.substr(0, space)) && space + 1 < bytes.size() &&
         bytes[space + 1] >= '0' && bytes[space + 1] <= '9';
}

TiktokenTokenizer::TiktokenTokenizer(const fs::path& path) {
  path_ = path;
  load(base::read_file(path, kLargestFileBytes), {read_beside(path, "tiktoken.json"), read_beside(path, "tokenizer_config.json")});
}

TiktokenTokenizer::TiktokenTokenizer(std::string_view ranks, const TiktokenSettings& settings, const fs::path& origin) {
  path_ = origin;
  load(ranks, settings);
}

void TiktokenTokenizer::load(std::string_view ranks, const TiktokenSettings& settings) {
  read_ranks(ranks);
  try {
    read_encoding(settings);
    words_of_ = make_pre_tokenizer(Regex(encoding_.pattern, Dialect::rust));
    bpe_ = make_bpe();
    add_special_tokens();
    const Json config = parse_json(settings.config, "tokenizer_config.json");
    special_ = special_tokens_of(config, [&](std::string_view name) { return id_of(name); });
    add_bos_ = special_.bos >= 0 && field_or(config, "add_bos_token", false);
    add_eos_ = special_.eos >= 0 && field_or(config, "add_eos_token", false);
  } catch (const Json::exception& wrong) {
    throw DataError("{} cannot be used: what lies beside it cannot be read: {}", path_.string(), wrong.what());
  } catch (const DataError& wrong) {
    throw DataError("{} cannot be used: {}", path_.string(), wrong.what());
  }
}

void TiktokenTokenizer::read_ranks(std::string_view text) {
  for (int64_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    try {
      const Line parsed = parse_line(line);
      const auto rank = static_cast<size_t>(parsed.rank);
      if (ids_.find(parsed.bytes) >= 0) throw DataError("its token is that of rank {} again", ids_.find(parsed.bytes));
      if (tokens_.size() <= rank) tokens_.resize(rank + 1);
      if (!tokens_[rank].empty()) throw DataError("the rank {} has a token already", rank);
      tokens_[rank] = parsed.bytes;
      ids_.add(parsed.bytes, parsed.rank);
    } catch (const DataError& wrong) {
      throw DataError("{} line {}: {}", path_.string(), number, wrong.what());
    }
  }
}

void TiktokenTokenizer::read_encoding(const TiktokenSettings& settings) {
  const Json own = parse_json(settings.tiktoken_json, "tiktoken.json"), config = parse_json(settings.config, "tokenizer_config.json");
  const auto known = known_encoding(path_.filename().string(), static_cast<int64_t>(ids_.entries().size()));
  if (known) encoding_ = *known;
  for (const Json* json : {&config, &own}) {
    if (json->contains("pattern")) encoding_.pattern = json->at("pattern").get<std::string>();
    if (const auto special = special_tokens_in(*json); !special.empty()) encoding_.special_tokens = special;
  }
  if (encoding_.pattern.empty())
    throw DataError(
        "nothing says how it cuts text into words: it has the name of no known encoding ({}), and there is no tiktoken.json beside it with "
        "a "
        "'pattern' and 'special_tokens'",
        known_encodings());
}

// One pair of neighbours for each way to put a token together from two others; all have its rank.
ByteBpe TiktokenTokenizer::make_bpe() const {
  std::array<int32_t, 256> byte_ids{};
  for (size_t byte = 0; byte < byte_ids.size(); ++byte) {
    byte_ids[byte] = ids_.find(std::string(1, static_cast<char>(byte)));
    if (byte_ids[byte] < 0) throw DataError("it has no token of the byte {:#04x} alone: is it cut short?", byte);
  }
  std::vector<BpeMerge> merges;
  std::vector<std::pair<std::string, int32_t>> tokens;
  int64_t cut_bytes = 0;
  for (const auto& [bytes, id] : ids_.entries()) {
    tokens.emplace_back(bytes, id);
    cut_bytes += static_cast<int64_t>(bytes.size() * bytes.size());
    if (cut_bytes > kMostCutBytes)
      throw DataError(
          "its tokens are too long to look for the parts of all: the sum of their squared lengths is over {}; no published encoding comes "
          "near it",
          kMostCutBytes);
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const int32_t left = ids_.find(std::string_view(bytes).substr(0, cut));
      const int32_t right = left < 0 ? -1 : ids_.find(std::string_view(bytes).substr(cut));
      if (right >= 0) merges.push_back({left, right, id, id});
    }
  }
  ByteBpe bpe(byte_ids, BpeMerges(merges));
  bpe.keep_whole(tokens);
  return bpe;
}

void TiktokenTokenizer::add_special_tokens() {
  Json list = Json::array();
  for (const auto& [content, id] : encoding_.special_tokens) {
    if (content.empty() || id < 0 || id > kLargestRank)
      throw DataError("its special token '{}' has the id {}: from 0 to {} it may be", content, id, kLargestRank);
    const auto at = static_cast<size_t>(id);
    if (tokens_.size() <= at) tokens_.resize(at + 1);
    if (!tokens_[at].empty() && tokens_[at] != content)
      throw DataError("its special token '{}' has the id {} of another token", content, id);
    tokens_[at] = content;
    list.push_back({{"content", content}, {"id", id}, {"special", true}, {"normalized", false}});
  }
  special_tokens_ = AddedTokens(list, *make_normalizer(nullptr));
}

std::vector<int32_t> TiktokenTokenizer::encode(std::string_view text) const {
  std::string repaired;
  text = valid_utf8(text, repaired);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3);
  const auto encode = [this](std::string_view word, std::vector<int32_t>& out) { bpe_.encode(word, out); };
  auto words = words_.lease();
  TextStore made;
  for (const auto& part : special_tokens_.cut(text, /*normalized=*/false)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    std::vector<Segment> segments{{text.substr(part.begin, part.end - part.begin), false}};
    words_of_->apply(segments, made);
    words.append_all(
        segments, [](const Segment& segment) { return segment.text; }, ids, encode);
  }
  return ids;
}

std::vector<int32_t> TiktokenTokenizer::encode_with_special(std::string_view text) const {
  auto ids = encode(text);
  if (add_bos_) ids.insert(ids.begin(), special_.bos);
  if (add_eos_) ids.push_back(special_.eos);
  return ids;
}

const std::string& TiktokenTokenizer::bytes_of(int32_t id) const {
  if (id < 0 || id >= vocab_size()) throw DataError("{}: there is no token {} in a vocabulary of {}", path_.string(), id, vocab_size());
  return tokens_[static_cast<size_t>(id)];
}

std::string TiktokenTokenizer::decode(std::span<const int32_t> ids, bool keep_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    const std::string& token = bytes_of(id);
    if (keep_special || !special_tokens_.is_special(id)) bytes += token;
  }
  int64_t replaced = 0;
  return replace_invalid_utf8(bytes, replaced);
}

std::string TiktokenTokenizer::piece(int32_t id) const {
  const std::string& bytes = bytes_of(id);
  return special_tokens_.is_special(id) ? bytes : bytes_to_byte_level(bytes);
}

int32_t TiktokenTokenizer::id_of(std::string_view piece) const {
  for (const auto& token : special_tokens_.tokens()) {
    if (token.content == piece) return token.id;
  }
  std::string bytes;
  return append_byte_level(piece, bytes) ? ids_.find(bytes) : -1;
}

std::string TiktokenTokenizer::settings_json() const {
  return Json{{"pattern", encoding_.pattern}, {"special_tokens", encoding_.special_tokens}}.dump(1) + "\n";
}

}  // namespace ingot::data
