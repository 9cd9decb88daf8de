// Bodies of requests as OpenAI's API has them (platform.openai.com/docs/api-reference: completions, chat), with the fields that vLLM adds:
// top_k, min_p, repetition_penalty, stop_token_ids, ignore_eos. Fields that are not known are ignored.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/chat/chat_template.h"
#include "data/tokenizer.h"
#include "serve/engine/engine.h"

namespace ingot::serve {

/// A request that cannot be answered, by the field that is wrong; status 400.
class RequestError : public base::Error {
 public:
  RequestError(std::string field, const std::string& message) : Error(message), field_(std::move(field)) {}
  const std::string& field() const { return field_; }

 private:
  std::string field_;
};

/// What a model's tokens mean, and how long a text may be.
struct Language {
  const data::Tokenizer* tokenizer = nullptr;
  const data::chat::ChatTemplate* chat_template = nullptr;  // null: the model has none
  int64_t context = 0;                                      // tokens of a prompt and its text together
  std::vector<int64_t> ends{};                              // tokens that end a text, besides the tokenizer's own
  int64_t most_texts = 128;                                 // of one request
};

/// Several texts of one request, all alike but for the prompt and the seed.
struct CompletionRequest {
  std::vector<TextRequest> texts;  // `choices` of each prompt, one prompt after another
  int64_t choices = 1, shown = 1;  // made of each prompt, and of those the likeliest that are shown
  bool echo = false, streams = false, streams_usage = false, is_chat = false, wants_logprobs = false;
  std::vector<std::string> stops;
};

/// A body as JSON, its keys in their order. Throws RequestError for what is none, nested deeply or of very many keys: what walks it
/// recurses, and looks for keys one by one.
nlohmann::ordered_json parsed_body(const std::string& body);

/// Throws RequestError.
CompletionRequest completion_request(const nlohmann::ordered_json& body, const Language& language);
CompletionRequest chat_request(const nlohmann::ordered_json& body, const Language& language);

/// Throws RequestError for a text that is far longer than the context: finding its tokens takes a hundred times its memory.
void check_length(const std::string& text, const Language& language, const char* field);

/// The ids of a text as a prompt has them: with what the tokenizer's template adds, and at least one.
std::vector<int64_t> prompt_ids(const std::string& text, const data::Tokenizer& tokenizer);

}  // namespace ingot::serve
