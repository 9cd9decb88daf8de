#include <queue>

#include "data/hugging_face/fields.h"
#include "data/hugging_face/model.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

using base::DataError;

struct Merge {
  int32_t rank = 0, result = 0;
};

// A token of a word that is being merged; those merged away have id -1.
struct Symbol {
  int32_t id = 0, previous = -1, next = -1;
};

struct Candidate {
  Merge merge;
  int32_t at = 0;
  bool operator<(const Candidate& other) const {  // the queue gives the largest: lowest rank, then leftmost
    return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : at > other.at;
  }
};

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
    int32_t rank = 0;
    for (const auto& merge : json.at("merges")) add_merge(merge, rank++);
    words_are_independent_ =
        prefix_.empty() && suffix_.empty() && !ignore_merges_ && (!bytes_.empty() || !fuse_unk_) && !vocabulary_.crosses_words();
  }

  bool words_are_independent() const override { return words_are_independent_; }
  int32_t unk_id() const override { return unk_; }

  std::vector<int32_t> encode(std::string_view text) const override {
    if (ignore_merges_) {
      if (const int32_t id = vocabulary_.find(text); id >= 0) return {id};
    }
    auto symbols = characters(text);
    merge_all(symbols);
    std::vector<int32_t> ids;
    for (const Symbol& symbol : symbols) {
      if (symbol.id >= 0) ids.push_back(symbol.id);
    }
    return ids;
  }

 private:
  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  void add_merge(const nlohmann::json& merge, int32_t rank) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      const auto text = merge.get<std::string>();
      if (text.starts_with("#version")) return;
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
        throw DataError("its merge {} ('{}') is not a pair", rank, text);
      left = text.substr(0, space);
      right = text.substr(space + 1);
    }
    if (!right.starts_with(prefix_)) throw DataError("its merge {} ('{}' '{}') does not continue a word", rank, left, right);
    const int32_t left_id = vocabulary_.find(left), right_id = vocabulary_.find(right),
                  result = vocabulary_.find(left + right.substr(prefix_.size()));
    if (left_id < 0 || right_id < 0 || result < 0)
      throw DataError("its merge {} ('{}' '{}') uses a token that is not in the vocabulary", rank, left, right);
    merges_.insert_or_assign(pair_key(left_id, right_id), Merge{rank, result});
  }

  // One symbol per character: its token, its bytes, or the unknown token; a run of unknown ones may count as one.
  std::vector<Symbol> characters(std::string_view text) const {
    std::vector<Symbol> symbols;
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
        symbols.push_back({id});
      } else if (!bytes_.empty()) {
        for (const char byte : character) symbols.push_back({bytes_[static_cast<unsigned char>(byte)]});
      } else if (unk_ >= 0 && !(fuse_unk_ && unknown_before)) {
        symbols.push_back({unk_});
      }
      unknown_before = id < 0;
    }
    const auto count = static_cast<int32_t>(symbols.size());
    for (int32_t i = 0; i < count; ++i)
      symbols[static_cast<size_t>(i)] = {symbols[static_cast<size_t>(i)].id, i - 1, i + 1 < count ? i + 1 : -1};
    return symbols;
  }

  const Merge* merge_at(const std::vector<Symbol>& symbols, int32_t at) const {
    if (at < 0 || symbols[static_cast<size_t>(at)].next < 0) return nullptr;
    const Symbol& left = symbols[static_cast<size_t>(at)];
    const auto found = merges_.find(pair_key(left.id, symbols[static_cast<size_t>(left.next)].id));
    return found == merges_.end() ? nullptr : &found->second;
  }

  void merge_all(std::vector<Symbol>& symbols) const {
    std::priority_queue<Candidate> queue;
    const auto consider = [&](int32_t at) {
      if (const Merge* merge = merge_at(symbols, at)) queue.push({*merge, at});
    };
    for (size_t i = 0; i < symbols.size(); ++i) consider(static_cast<int32_t>(i));
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      Symbol& left = symbols[static_cast<size_t>(best.at)];
      if (left.id < 0) continue;
      const Merge* now = merge_at(symbols, best.at);
      if (!now || now->result != best.merge.result) continue;  // a neighbour has changed since
      Symbol& right = symbols[static_cast<size_t>(left.next)];
      left.id = best.merge.result;
      left.next = right.next;
      right.id = -1;
      if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.at;
      consider(left.previous);
      consider(best.at);
    }
  }

  std::string prefix_, suffix_;
  bool fuse_unk_, ignore_merges_, words_are_independent_ = false;
  int32_t unk_ = -1;
  std::vector<int32_t> bytes_;  // of byte fallback, by byte; empty without it
  std::unordered_map<uint64_t, Merge> merges_;
};

}  // namespace

std::unique_ptr<TokenModel> make_bpe(const nlohmann::json& json) { return std::make_unique<Bpe>(json); }

}  // namespace ingot::data
