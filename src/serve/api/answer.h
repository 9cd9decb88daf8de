// What is said of a request's texts, as OpenAI's API has it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/api/request.h"
#include "serve/api/text_so_far.h"

namespace ingot::serve {

/// One text of a request on its way into an answer.
class AnsweredText {
 public:
  AnsweredText(const TextRequest& asked, const CompletionRequest& request, const Language& language, std::shared_ptr<Text> text);

  /// What has come since the last time, waiting no longer than `most`: a choice of a stream without its index, or null when there is
  /// nothing to say. Throws Error when the text has failed.
  nlohmann::ordered_json next(std::chrono::milliseconds most);
  /// The whole of a text that has ended: a choice without its index.
  nlohmann::ordered_json whole() const;

  bool has_ended() const { return ended_ != Ended::not_yet; }
  int64_t tokens() const { return tokens_; }
  /// Of a token on average: what best_of goes by.
  double mean_logprob() const { return tokens_ > 0 ? sum_logprob_ / static_cast<double>(tokens_) : 0; }
  Text& text() { return *text_; }

 private:
  void add_prompt();
  void add(const Choice& token, bool has_logprob);
  nlohmann::ordered_json choice(const std::string& text, const nlohmann::ordered_json& logprobs, bool is_piece) const;
  std::string spelling(int64_t id) const;

  const bool is_chat_, wants_logprobs_, echoes_;
  const Language& language_;
  const std::vector<int64_t> prompt_;
  std::shared_ptr<Text> text_;
  TextSoFar so_far_;
  std::string all_;
  nlohmann::ordered_json logprobs_, new_logprobs_;
  int64_t tokens_ = 0, characters_ = 0;
  double sum_logprob_ = 0;
  bool has_begun_ = false;
  Ended ended_ = Ended::not_yet;
};

}  // namespace ingot::serve
