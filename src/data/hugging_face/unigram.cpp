#include <algorithm>
#include <cmath>
#include <limits>

#include "data/hugging_face/fields.h"
#include "data/hugging_face/model.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

using base::DataError;

constexpr double kUnknownPenalty = 10;  // below the worst token, as in SentencePiece

class Unigram : public TokenModel {
 public:
  explicit Unigram(const nlohmann::json& json)
      : unk_(field_or<int32_t>(json, "unk_id", -1)), scores_(read_scores(json, vocabulary_)), tree_(vocabulary_) {
    if (unk_ >= static_cast<int32_t>(scores_.size()))
      throw DataError("its unk_id {} is outside the vocabulary of {}", unk_, scores_.size());
    if (field_or(json, "byte_fallback", false)) bytes_ = vocabulary_.byte_ids();
    unknown_score_ = *std::min_element(scores_.begin(), scores_.end()) - kUnknownPenalty;
    words_are_independent_ = !bytes_.empty() && !vocabulary_.crosses_words();
  }

  bool words_are_independent() const override { return words_are_independent_; }
  int32_t unk_id() const override { return unk_; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    const auto steps = best_steps(text);
    const auto first = static_cast<std::ptrdiff_t>(ids.size());
    // Backwards along the best way; unknown characters side by side are one piece.
    for (size_t end = text.size(); end > 0;) {
      size_t begin = steps[end].begin;
      const bool unknown = steps[end].id == unk_;
      while (unknown && begin > 0 && steps[begin].id == unk_) begin = steps[begin].begin;
      if (unknown) add_unknown(text.substr(begin, end - begin), ids);
      else ids.push_back(steps[end].id);
      end = begin;
    }
    std::reverse(ids.begin() + first, ids.end());
  }

 private:
  struct Step {
    double score = 0;
    size_t begin = 0;  // of the piece that ends here
    int32_t id = -1;   // of that piece; -1: nothing ends here yet
  };

  static std::vector<double> read_scores(const nlohmann::json& json, Vocabulary& vocabulary) {
    std::vector<double> scores;
    for (const auto& entry : json.at("vocab")) {
      vocabulary.add(entry.at(0).get<std::string>(), static_cast<int64_t>(scores.size()));
      scores.push_back(entry.at(1).get<double>());
      if (!std::isfinite(scores.back())) throw DataError("its token {} has no finite score", scores.size() - 1);
    }
    if (scores.empty()) throw DataError("its Unigram vocabulary is empty");
    return scores;
  }

  // Viterbi: for every position the best piece that ends there. The first of equals stays.
  std::vector<Step> best_steps(std::string_view text) const {
    std::vector<Step> steps(text.size() + 1);
    for (size_t begin = 0; begin < text.size();) {
      const auto character = static_cast<size_t>(utf8_length(text[begin]));
      const double so_far = steps[begin].score;
      bool character_is_token = false;
      const auto offer = [&](size_t length, int32_t id, double score) {
        Step& step = steps[begin + length];
        if (step.id < 0 || so_far + score > step.score) step = {so_far + score, begin, id};
      };
      tree_.visit_prefixes(text.substr(begin), [&](size_t length, int32_t id) {
        offer(length, id, scores_[static_cast<size_t>(id)]);
        character_is_token |= length == character;
      });
      if (!character_is_token) {
        if (unk_ < 0) throw DataError("'{}' is in no token, and the tokenizer has no unknown token", text.substr(begin, character));
        offer(character, unk_, unknown_score_);
      }
      begin += character;
    }
    return steps;
  }

  // In reverse, as the caller goes.
  void add_unknown(std::string_view piece, std::vector<int32_t>& ids) const {
    if (const int32_t id = vocabulary_.find(piece); id >= 0) {
      ids.push_back(id);
    } else if (!bytes_.empty()) {
      for (auto byte = piece.rbegin(); byte != piece.rend(); ++byte) ids.push_back(bytes_[static_cast<unsigned char>(*byte)]);
    } else {
      ids.push_back(unk_);
    }
  }

  int32_t unk_;
  std::vector<double> scores_;
  PrefixTree tree_;
  std::vector<int32_t> bytes_;
  double unknown_score_ = 0;
  bool words_are_independent_ = false;
};

}  // namespace

std::unique_ptr<TokenModel> make_unigram(const nlohmann::json& json) { return std::make_unique<Unigram>(json); }

}  // namespace ingot::data
