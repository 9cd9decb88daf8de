#include "serve/api/request.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

namespace ingot::serve {
namespace {

using json = nlohmann::ordered_json;

constexpr int64_t kMostChoices = 128, kMostStops = 16, kMostLikeliest = 20, kMostIds = 1024;
constexpr size_t kLongestStop = 1000;

// A field that may be absent or null.
const json* field(const json& body, const char* name) {
  const auto found = body.find(name);
  return found == body.end() || found->is_null() ? nullptr : &*found;
}

double number(const json& body, const char* name, double otherwise, double least, double most) {
  const auto* value = field(body, name);
  if (!value) return otherwise;
  if (!value->is_number()) throw RequestError(name, fmt::format("{} is no number", name));
  const auto number = value->get<double>();
  if (!(number >= least && number <= most)) throw RequestError(name, fmt::format("{} is {}, not from {} to {}", name, number, least, most));
  return number;
}

int64_t integer(const json& body, const char* name, int64_t otherwise, int64_t least, int64_t most) {
  const auto* value = field(body, name);
  if (!value) return otherwise;
  const auto wrong = [&] { return RequestError(name, fmt::format("{} is not an integer from {} to {}", name, least, most)); };
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) throw wrong();
  if (!value->is_number_integer()) throw wrong();
  const auto number = value->get<int64_t>();
  if (number < least || number > most) throw wrong();
  return number;
}

bool boolean(const json& body, const char* name) {
  const auto* value = field(body, name);
  if (!value) return false;
  if (!value->is_boolean()) throw RequestError(name, fmt::format("{} is neither true nor false", name));
  return value->get<bool>();
}

std::vector<std::string> stops_of(const json& body) {
  const auto* value = field(body, "stop");
  if (!value) return {};
  const auto list = value->is_string() ? json::array({*value}) : *value;
  std::vector<std::string> stops;
  if (!list.is_array() || list.size() > kMostStops)
    throw RequestError("stop", fmt::format("stop is no text nor a list of up to {}", kMostStops));
  for (const auto& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty() || stop.get_ref<const std::string&>().size() > kLongestStop)
      throw RequestError("stop", fmt::format("stop has something that is no text of 1 to {} bytes", kLongestStop));
    stops.push_back(stop.get<std::string>());
  }
  return stops;
}

std::vector<int64_t> ids_of(const json& list, const char* name) {
  std::vector<int64_t> ids;
  for (const auto& id : list) {
    if (!id.is_number_integer()) throw RequestError(name, fmt::format("{} has something that is no token id", name));
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

SamplingOptions sampling_of(const json& body, int64_t vocab) {
  SamplingOptions options;
  options.temperature = number(body, "temperature", 1, 0, 100);
  options.top_p = number(body, "top_p", 1, 0, 1);
  options.min_p = number(body, "min_p", 0, 0, 1);
  options.top_k = std::max<int64_t>(0, integer(body, "top_k", 0, -1, INT32_MAX));  // vLLM says -1 for all
  options.repetition_penalty = number(body, "repetition_penalty", 1, 0.01, 100);
  options.presence_penalty = number(body, "presence_penalty", 0, -2, 2);
  options.frequency_penalty = number(body, "frequency_penalty", 0, -2, 2);
  options.seed = static_cast<uint64_t>(integer(body, "seed", std::random_device()(), INT64_MIN, INT64_MAX));
  if (const auto* biases = field(body, "logit_bias")) {
    if (!biases->is_object() || biases->size() > kMostIds)
      throw RequestError("logit_bias", fmt::format("logit_bias is no object of up to {} token ids", kMostIds));
    for (const auto& [name, bias] : biases->items()) {
      int64_t id = -1;
      const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), id);
      if (failed != std::errc() || end != name.data() + name.size() || id < 0 || id >= vocab || !bias.is_number() ||
          !(std::abs(bias.get<double>()) <= 100))
        throw RequestError("logit_bias", fmt::format("logit_bias has \"{}\": token ids go with numbers from -100 to 100", name));
      options.logit_bias[id] = bias.get<double>();
    }
  }
  return options;
}

// What texts of every prompt have in common.
struct Common {
  TextRequest text;
  CompletionRequest request;
};

Common common_of(const json& body, const Language& language) {
  Common common;
  auto& [text, request] = common;
  if (!body.is_object()) throw RequestError("", "the body is no JSON object");
  text.sampling = sampling_of(body, language.tokenizer->vocab_size());
  request.stops = stops_of(body);
  request.streams = boolean(body, "stream");
  if (const auto* options = field(body, "stream_options"); options && options->is_object())
    request.streams_usage = boolean(*options, "include_usage");
  request.shown = integer(body, "n", 1, 1, kMostChoices);
  request.choices = integer(body, "best_of", request.shown, 1, kMostChoices);
  if (request.choices < request.shown) throw RequestError("best_of", "best_of is less than n");
  if (request.choices > request.shown && request.streams) throw RequestError("best_of", "best_of does not go with stream");
  if (const auto* ids = field(body, "stop_token_ids")) {
    if (!ids->is_array() || ids->size() > kMostIds)
      throw RequestError("stop_token_ids", fmt::format("stop_token_ids is no list of up to {} token ids", kMostIds));
    text.stop_ids = ids_of(*ids, "stop_token_ids");
  }
  if (!boolean(body, "ignore_eos")) {
    if (const int32_t eos = language.tokenizer->special().eos; eos >= 0) text.stop_ids.push_back(eos);
    text.stop_ids.insert(text.stop_ids.end(), language.ends.begin(), language.ends.end());
  }
  return common;
}

void add_prompt(Common& common, std::vector<int64_t> prompt, const Language& language, std::optional<int64_t> wanted, const char* field) {
  auto& request = common.request;
  auto text = common.text;
  const auto tokens = static_cast<int64_t>(prompt.size());
  text.most_tokens = wanted.value_or(std::max<int64_t>(0, language.context - tokens));
  if (tokens + std::max<int64_t>(1, text.most_tokens) > language.context)
    throw RequestError(field, fmt::format("a prompt of {} tokens and {} new ones are more than the model's context of {}", tokens,
                                          text.most_tokens, language.context));
  if (static_cast<int64_t>(request.texts.size()) + request.choices > language.most_texts)
    throw RequestError(field, fmt::format("a request is of up to {} texts, prompts times n or best_of", language.most_texts));
  text.prompt = std::move(prompt);
  for (int64_t i = 0; i < request.choices; ++i) {
    request.texts.push_back(text);
    request.texts.back().sampling.seed += static_cast<uint64_t>(i);
  }
}

// Reads a body without keeping it. Throws RequestError for what is nested deeply or of very many keys or values.
class Limited : public nlohmann::json_sax<json> {
 public:
  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(size_t) override { return begin(); }
  bool start_array(size_t) override { return begin(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t&) override {
    constexpr int64_t kMostKeys = 2000;
    if (++keys_.back() > kMostKeys) throw RequestError("", fmt::format("an object of the body has more than {} keys", kMostKeys));
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool value() {
    constexpr int64_t kMostValues = 1 << 20;  // each takes many times the bytes that it is written in
    if (++values_ > kMostValues) throw RequestError("", fmt::format("the body has more than {} values", kMostValues));
    return true;
  }
  bool begin() {
    constexpr size_t kDeepest = 64;
    keys_.push_back(0);
    if (keys_.size() > kDeepest) throw RequestError("", fmt::format("the body is nested deeper than {} levels", kDeepest));
    return value();
  }
  bool end() {
    keys_.pop_back();
    return true;
  }

  int64_t values_ = 0;
  std::vector<int64_t> keys_;  // so far, of each object and list around
};

}  // namespace

json parsed_body(const std::string& body) {
  // First, as json::parse with a callback goes through all of a list at the end of each object in it.
  Limited limited;
  if (!json::sax_parse(body, &limited)) throw RequestError("", "the body is no JSON object");
  auto document = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) throw RequestError("", "the body is no JSON object");
  return document;
}

void check_length(const std::string& text, const Language& language, const char* field) {
  constexpr int64_t kBytesOfToken = 32;  // more than the tokens of any text have on average
  const auto most = std::max<int64_t>(1 << 20, kBytesOfToken * language.context);
  if (static_cast<int64_t>(text.size()) > most)
    throw RequestError(field, fmt::format("a text of {} bytes is longer than the {} of a server with a context of {} tokens", text.size(),
                                          most, language.context));
}

std::vector<int64_t> prompt_ids(const std::string& text, const data::Tokenizer& tokenizer) {
  const auto ids = tokenizer.encode_with_special(text);
  std::vector<int64_t> prompt(ids.begin(), ids.end());
  const auto& special = tokenizer.special();
  if (prompt.empty() && special.bos >= 0) prompt = {special.bos};
  if (prompt.empty() && special.eos >= 0) prompt = {special.eos};
  return prompt;
}

CompletionRequest completion_request(const json& body, const Language& language) {
  auto common = common_of(body, language);
  auto& [text, request] = common;
  if (const auto* suffix = field(body, "suffix"); suffix && *suffix != "") throw RequestError("suffix", "suffix is not supported");
  request.echo = boolean(body, "echo");
  if (const auto* count = field(body, "logprobs"); count && *count != false) {
    text.likeliest = integer(body, "logprobs", 0, 0, kMostLikeliest);
    request.wants_logprobs = true;
    text.scores_prompt = request.echo;
  } else if (request.choices > request.shown) {
    text.likeliest = 0;  // to tell the likeliest
  }
  const int64_t wanted = integer(body, "max_tokens", 16, 0, INT32_MAX);
  if (wanted == 0 && !request.echo) throw RequestError("max_tokens", "max_tokens = 0 asks for nothing, unless with echo");
  const auto* prompt = field(body, "prompt");
  const auto wrong = [] { return RequestError("prompt", "prompt is a text, a list of token ids, or a list of either"); };
  if (!prompt) throw RequestError("prompt", "prompt is missing");
  const auto add = [&](const json& one) {
    if (one.is_string()) {
      const auto words = one.get<std::string>();
      check_length(words, language, "prompt");
      add_prompt(common, prompt_ids(words, *language.tokenizer), language, wanted, "prompt");
    } else if (one.is_array()) {
      add_prompt(common, ids_of(one, "prompt"), language, wanted, "prompt");
    } else {
      throw wrong();
    }
  };
  if (prompt->is_array() && !prompt->empty() && !(*prompt)[0].is_number()) {
    for (const auto& one : *prompt) add(one);
  } else {
    add(*prompt);
  }
  return std::move(request);
}

CompletionRequest chat_request(const json& body, const Language& language) {
  auto common = common_of(body, language);
  auto& [text, request] = common;
  request.is_chat = true;
  if (!language.chat_template)
    throw RequestError("messages", "the model has no chat template; use /v1/completions, or start the server with --chat-template");
  if (boolean(body, "logprobs")) {
    text.likeliest = integer(body, "top_logprobs", 0, 0, kMostLikeliest);
    request.wants_logprobs = true;
  } else if (request.choices > request.shown) {
    text.likeliest = 0;
  }
  const auto* messages = field(body, "messages");
  if (!messages || !messages->is_array() || messages->empty()) throw RequestError("messages", "messages is no list of messages");
  auto extra = json::object();
  for (const char* name : {"tools", "documents"})
    if (const auto* value = field(body, name)) extra[name] = *value;
  if (const auto* more = field(body, "chat_template_kwargs"); more && more->is_object())
    for (const auto& [name, value] : more->items()) extra[name] = value;
  std::string rendered;
  try {
    rendered = language.chat_template->render(*messages, /*add_generation_prompt=*/true, extra).text;
  } catch (const base::DataError& failure) {
    throw RequestError("messages", failure.what());
  }
  check_length(rendered, language, "messages");
  // The template has written the special tokens itself.
  const auto ids = language.tokenizer->encode(rendered);
  std::optional<int64_t> wanted;
  for (const char* name : {"max_tokens", "max_completion_tokens"})
    if (field(body, name)) wanted = integer(body, name, 0, 1, INT32_MAX);
  add_prompt(common, {ids.begin(), ids.end()}, language, wanted, "messages");
  return std::move(request);
}

}  // namespace ingot::serve
