#include "data/train_byte_bpe.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <queue>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "data/hugging_face/byte_level.h"
#include "data/hugging_face/pre_tokenizer.h"

namespace ingot::data {
namespace {

using Json = nlohmann::ordered_json;
using Pair = std::pair<int32_t, int32_t>;

struct HashOfPair {
  size_t operator()(const Pair& pair) const {
    return (static_cast<uint64_t>(pair.first) << 32 | static_cast<uint64_t>(pair.second)) * 0x9E3779B97F4A7C15 >> 7;
  }
};

struct Word {
  std::vector<int32_t> ids;
  int64_t count = 0;
};

// What is known of a pair of neighbours: how often it comes, and words that have or had it.
struct Known {
  int64_t count = 0;
  std::vector<uint32_t> words;
};

struct Candidate {
  int64_t count = 0;
  Pair pair;
  bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : pair > other.pair; }
};

class Trainer {
 public:
  explicit Trainer(std::vector<Word> words) : words_(std::move(words)) {
    for (uint32_t w = 0; w < words_.size(); ++w) change(w, 1);
    for (const auto& [pair, known] : pairs_) queue_.push({known.count, pair});
  }

  /// The pair that comes most often; false where none comes twice.
  bool find(Pair& most) {
    while (!queue_.empty()) {
      const auto best = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(best.pair);
      if (found == pairs_.end() || found->second.count != best.count) {
        if (found != pairs_.end() && found->second.count > 0 && found->second.count < best.count)
          queue_.push({found->second.count, best.pair});
        continue;
      }
      most = best.pair;
      return best.count > 1;
    }
    return false;
  }

  /// Makes one token of it.
  void merge(const Pair& pair, int32_t id) {
    const auto [left, right] = pair;
    const auto among = std::exchange(pairs_[pair].words, {});
    grown_.clear();
    for (const uint32_t w : among) {
      auto& ids = words_[w].ids;
      bool has = false;
      for (size_t i = 0; i + 1 < ids.size() && !has; ++i) has = ids[i] == left && ids[i + 1] == right;
      if (!has) continue;
      change(w, -1);
      size_t to = 0;
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool is_pair = i + 1 < ids.size() && ids[i] == left && ids[i + 1] == right;
        ids[to++] = is_pair ? id : ids[i];
        i += is_pair ? 1 : 0;
      }
      ids.resize(to);
      change(w, 1);
    }
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const auto& grown : grown_)
      if (const int64_t count = pairs_[grown].count; count > 0) queue_.push({count, grown});
  }

 private:
  void change(uint32_t w, int64_t sign) {
    const auto& word = words_[w];
    for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
      auto& known = pairs_[{word.ids[i], word.ids[i + 1]}];
      known.count += sign * word.count;
      if (sign > 0) {
        if (known.words.empty() || known.words.back() != w) known.words.push_back(w);
        grown_.push_back({word.ids[i], word.ids[i + 1]});
      }
    }
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, Known, HashOfPair> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<Pair> grown_;
};

// How often each word comes, in the order of their bytes.
std::vector<Word> words_in(const std::vector<std::string>& texts, const std::string& pattern, const std::array<int32_t, 256>& byte_ids) {
  const auto cut = make_pre_tokenizer({{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  std::unordered_map<std::string, int64_t> counts;
  for (const auto& text : texts) {
    TextStore made;
    std::vector<Segment> segments{{text, true}};
    cut->apply(segments, made);
    for (const auto& segment : segments) ++counts[std::string(segment.text)];
  }
  std::vector<std::pair<std::string, int64_t>> sorted(counts.begin(), counts.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<Word> words;
  for (const auto& [text, count] : sorted) {
    auto& word = words.emplace_back();
    word.count = count;
    for (const char byte : text) word.ids.push_back(byte_ids[static_cast<unsigned char>(byte)]);
  }
  return words;
}

}  // namespace

std::string train_byte_bpe(const std::vector<std::string>& texts, const ByteBpeOptions& options) {
  std::vector<std::string> tokens = options.special;
  tokens.insert(tokens.end(), options.symbols.begin(), options.symbols.end());
  Json added = Json::array();
  for (size_t id = 0; id < tokens.size(); ++id)
    added.push_back({{"id", id},
                     {"content", tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", id < options.special.size()}});
  // Bytes in the order of the characters that stand for them, as Hugging Face's trainer has them.
  std::vector<std::pair<std::string, int>> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(bytes_to_byte_level(std::string(1, static_cast<char>(byte))), byte);
  std::sort(bytes.begin(), bytes.end());  // UTF-8 sorts as its characters do
  std::unordered_map<std::string, int32_t> ids;
  for (const auto& token : tokens) ids.emplace(token, static_cast<int32_t>(ids.size()));
  // Two ways to put the same bytes together make one token.
  const auto id_of = [&](const std::string& token) {
    const auto [at, is_new] = ids.emplace(token, static_cast<int32_t>(tokens.size()));
    if (is_new) tokens.push_back(token);
    return at->second;
  };
  std::array<int32_t, 256> byte_ids{};
  for (const auto& [character, byte] : bytes) {
    byte_ids[static_cast<size_t>(byte)] = id_of(character);
  }
  Trainer trainer(words_in(texts, options.pattern, byte_ids));
  Json merges = Json::array();
  while (static_cast<int64_t>(tokens.size()) < options.vocab_size) {
    Pair pair;
    if (!trainer.find(pair))
      throw base::DataError("the text gives {} tokens of byte-level BPE and not {}: take more text, or a smaller --vocab-size",
                            tokens.size(), options.vocab_size);
    const std::string left = tokens[static_cast<size_t>(pair.first)], right = tokens[static_cast<size_t>(pair.second)];
    merges.push_back(Json::array({left, right}));
    trainer.merge(pair, id_of(left + right));
  }
  Json vocab = Json::object();
  for (size_t id = 0; id < tokens.size(); ++id) vocab.push_back({tokens[id], id});
  const Json byte_level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const Json split{{"type", "Split"}, {"pattern", {{"Regex", options.pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return Json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", added},
              {"normalizer", nullptr},
              {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level})}}},
              {"post_processor", nullptr},
              {"decoder", byte_level},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"ignore_merges", false},
                {"vocab", vocab},
                {"merges", merges}}}}
             .dump(1) +
         "\n";
}

}  // namespace ingot::data
