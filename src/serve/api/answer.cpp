#include "serve/api/answer.h"

#include <nlohmann/json.hpp>

namespace ingot::serve {
namespace {

using nlohmann::ordered_json;

ordered_json no_logprobs(bool is_chat) {
  if (is_chat) return {{"content", ordered_json::array()}};
  return {{"tokens", ordered_json::array()},
          {"token_logprobs", ordered_json::array()},
          {"top_logprobs", ordered_json::array()},
          {"text_offset", ordered_json::array()}};
}

ordered_json bytes_of(const std::string& text) {
  auto bytes = ordered_json::array();
  for (const char c : text) bytes.push_back(static_cast<int>(static_cast<unsigned char>(c)));
  return bytes;
}

int64_t characters_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

void append(ordered_json& all, const ordered_json& more) {
  for (const auto& [name, list] : more.items())
    for (const auto& element : list) all[name].push_back(element);
}

}  // namespace

AnsweredText::AnsweredText(const TextRequest& asked, const CompletionRequest& request, const Language& language, std::shared_ptr<Text> text)
    : is_chat_(request.is_chat),
      wants_logprobs_(request.wants_logprobs),
      echoes_(request.echo),
      language_(language),
      prompt_(request.echo ? asked.prompt : std::vector<int64_t>{}),
      text_(std::move(text)),
      so_far_(*language.tokenizer, request.stops, asked.prompt),
      logprobs_(request.wants_logprobs ? no_logprobs(request.is_chat) : ordered_json()),
      new_logprobs_(logprobs_) {}

std::string AnsweredText::spelling(int64_t id) const {
  if (id >= language_.tokenizer->vocab_size()) return "";
  const auto token = static_cast<int32_t>(id);
  return language_.tokenizer->decode({&token, 1}, /*keep_special=*/true);
}

void AnsweredText::add(const Choice& token, bool has_logprob) {
  const auto text = spelling(token.id);
  if (is_chat_) {
    auto top = ordered_json::array();
    for (const auto& other : token.likeliest) {
      const auto spelled = spelling(other.id);
      top.push_back({{"token", spelled}, {"logprob", other.logprob}, {"bytes", bytes_of(spelled)}});
    }
    new_logprobs_["content"].push_back({{"token", text}, {"logprob", token.logprob}, {"bytes", bytes_of(text)}, {"top_logprobs", top}});
    return;
  }
  ordered_json top;
  if (has_logprob) {
    top = ordered_json::object();
    // Two tokens may be spelled alike: the likelier one stays. The token itself is always there.
    for (const auto& other : token.likeliest)
      if (const auto spelled = spelling(other.id); !top.contains(spelled)) top[spelled] = other.logprob;
    if (!top.contains(text)) top[text] = token.logprob;
  }
  new_logprobs_["tokens"].push_back(text);
  new_logprobs_["token_logprobs"].push_back(has_logprob ? ordered_json(token.logprob) : ordered_json());
  new_logprobs_["top_logprobs"].push_back(top);
  new_logprobs_["text_offset"].push_back(characters_);
  characters_ += characters_of(text);
}

void AnsweredText::add_prompt() {
  std::vector<int32_t> ids(prompt_.begin(), prompt_.end());
  std::erase_if(ids, [&](int32_t id) { return id >= language_.tokenizer->vocab_size(); });
  all_ = language_.tokenizer->decode(ids);
  if (!wants_logprobs_) return;
  bool is_first = true;
  for (const auto& token : text_->prompt_scores()) add(token, !std::exchange(is_first, false));
}

ordered_json AnsweredText::choice(const std::string& text, const ordered_json& logprobs, bool is_piece) const {
  ordered_json choice = {{"index", 0}};
  if (!is_chat_) choice["text"] = text;
  else if (is_piece) choice["delta"] = {{"content", text}};
  else choice["message"] = {{"role", "assistant"}, {"content", text}};
  choice["logprobs"] = wants_logprobs_ ? logprobs : ordered_json();
  choice["finish_reason"] = nullptr;
  if (has_ended()) choice["finish_reason"] = ended_ == Ended::length ? "length" : "stop";
  return choice;
}

ordered_json AnsweredText::next(std::chrono::milliseconds most) {
  if (has_ended()) return nullptr;
  const auto news = text_->wait(most);
  if (news.tokens.empty() && news.ended == Ended::not_yet) return nullptr;
  if (news.ended == Ended::failed) throw base::Error(text_->failure());
  std::string piece;
  if (!has_begun_ && echoes_) add_prompt(), piece = all_;
  has_begun_ = true;
  for (size_t i = 0; i < news.tokens.size() && !so_far_.is_stopped(); ++i) {
    const auto& token = news.tokens[i];
    ++tokens_;
    sum_logprob_ += token.logprob;
    // The token that ended the text is none of it.
    const bool is_end = news.ended == Ended::stop && i + 1 == news.tokens.size();
    if (is_end) break;
    if (wants_logprobs_) add(token, true);
    const auto more = so_far_.push(token.id);
    piece += more, all_ += more;
  }
  ended_ = news.ended;
  if (so_far_.is_stopped()) {
    text_->cancel();
    ended_ = Ended::stop;
  } else if (has_ended()) {
    const auto rest = so_far_.finish();
    piece += rest, all_ += rest;
    if (so_far_.is_stopped()) ended_ = Ended::stop;
  }
  if (!wants_logprobs_) return choice(piece, nullptr, /*is_piece=*/true);
  const auto new_logprobs = std::exchange(new_logprobs_, no_logprobs(is_chat_));
  append(logprobs_, new_logprobs);
  return choice(piece, new_logprobs, /*is_piece=*/true);
}

ordered_json AnsweredText::whole() const { return choice(all_, logprobs_, /*is_piece=*/false); }

}  // namespace ingot::serve
