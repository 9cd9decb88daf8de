#include "serve/api/server.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/log.h"
#include "http/server.h"
#include "serve/api/answer.h"
#include "serve/page/page.h"

namespace ingot::serve {
namespace {

using http::Clock;
using nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr milliseconds kSlice(50);  // between two looks at whether the client has left

std::string dumped(const ordered_json& document) { return document.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

void say(httplib::Response& response, int status, const ordered_json& document) {
  response.status = status;
  response.set_content(dumped(document), "application/json");
}

void refuse(httplib::Response& response, int status, const std::string& message, const std::string& field = "") {
  const char* type = status == 401                    ? "authentication_error"
                     : status == 404                  ? "not_found_error"
                     : status == 429 || status == 503 ? "overloaded_error"
                     : status < 500                   ? "invalid_request_error"
                                                      : "server_error";
  if (status == 429 || status == 503) response.set_header("Retry-After", "1");
  say(response, status,
      {{"error",
        {{"message", message}, {"type", type}, {"param", field.empty() ? ordered_json() : ordered_json(field)}, {"code", status}}}});
}

// Of keys: takes as long wherever they differ.
bool are_equal(const std::string& a, const std::string& b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[b.empty() ? 0 : i % b.size()]);
  return difference == 0;
}

int64_t now_s() { return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// The texts of one request.
struct Answer {
  CompletionRequest request;
  std::vector<std::unique_ptr<AnsweredText>> texts;
  std::string id;
  int64_t created = now_s();
  Clock::time_point begin = Clock::now();
  bool has_begun = false, has_said_who = false;

  Answer() = default;
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  ~Answer() {
    for (const auto& text : texts)
      if (!text->has_ended()) text->text().cancel();
  }

  int64_t prompt_tokens() const {
    int64_t tokens = 0;
    for (size_t i = 0; i < request.texts.size(); i += static_cast<size_t>(request.choices))
      tokens += static_cast<int64_t>(request.texts[i].prompt.size());
    return tokens;
  }
  ordered_json usage() const {
    int64_t made = 0;
    for (const auto& text : texts) made += text->tokens();
    return {{"prompt_tokens", prompt_tokens()}, {"completion_tokens", made}, {"total_tokens", prompt_tokens() + made}};
  }
};

// What /metrics says.
struct Metrics {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      prometheus::BuildCounter().Name("ingot_serve_requests_total").Help("answered requests by path and status").Register(registry);
  prometheus::Family<prometheus::Gauge>& gauges =
      prometheus::BuildGauge().Name("ingot_serve_texts").Help("texts under way, and waiting").Register(registry);
  prometheus::Family<prometheus::Counter>& tokens =
      prometheus::BuildCounter()
          .Name("ingot_serve_tokens_total")
          .Help("of prompts that were read or that earlier texts had left, of texts, and drafts that were made and taken")
          .Register(registry);
  prometheus::Gauge& kept_bytes = prometheus::BuildGauge()
                                      .Name("ingot_serve_prefix_cache_bytes")
                                      .Help("pages and states that stay for texts that begin alike")
                                      .Register(registry)
                                      .Add({});
  prometheus::Histogram& first_token =
      prometheus::BuildHistogram()
          .Name("ingot_serve_time_to_first_token_seconds")
          .Help("from the request to the first token of its first text")
          .Register(registry)
          .Add({}, prometheus::Histogram::BucketBoundaries{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60});

  std::string text(const EngineCounts& counts) {
    gauges.Add({{"state", "running"}}).Set(static_cast<double>(counts.running));
    gauges.Add({{"state", "waiting"}}).Set(static_cast<double>(counts.waiting));
    const auto set = [&](const char* kind, int64_t value) {
      auto& counter = tokens.Add({{"kind", kind}});
      counter.Increment(std::max(0.0, static_cast<double>(value) - counter.Value()));
    };
    set("prompt", counts.prompt_tokens);
    set("prompt_reused", counts.reused_tokens);
    set("text", counts.text_tokens);
    set("draft", counts.drafted);
    set("draft_taken", counts.drafts_taken);
    kept_bytes.Set(static_cast<double>(counts.kept_bytes));
    return prometheus::TextSerializer().Serialize(registry.Collect());
  }
};

}  // namespace

struct ApiServer::State {
  Engine& engine;
  const Language& language;
  const ServerOptions options;
  Metrics metrics;
  std::mutex metrics_mutex;
  std::atomic<int64_t> answers = 0;  // under way
  std::atomic<uint64_t> next_id = 0;
  const uint32_t own_id = std::random_device()();
  std::atomic<bool> is_draining = false;
  int port = 0;
  http::Server server;  // ends before what its handlers use

  State(Engine& texts, const Language& spoken, ServerOptions chosen)
      : engine(texts), language(spoken), options(std::move(chosen)), server(limits_of(options)) {}

  static http::Limits limits_of(const ServerOptions& o) {
    return {.request_bytes = o.request_mib << 20,
            .request = std::chrono::seconds(30),
            .stall = std::chrono::seconds(30),
            .answer = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(o.timeout_s + 30)),
            .connections = o.connections,
            .incoming = 512};
  }

  void configure() {
    server.set_payload_max_length(options.request_mib << 20);
    server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      const bool is_open = options.api_key.empty() || !request.path.starts_with("/v1/") ||
                           are_equal("Bearer " + options.api_key, request.get_header_value("Authorization"));
      if (is_open) return httplib::Server::HandlerResponse::Unhandled;
      refuse(response, 401, "a wrong API key, or none (Authorization: Bearer KEY)");
      return httplib::Server::HandlerResponse::Handled;
    });
    server.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;
      const int status = response.status;
      refuse(response, status,
             status == 404   ? fmt::format("there is no {} {}", request.method, request.path.substr(0, 100))
             : status == 413 ? "the request is too long"
                             : "a request that cannot be read");
    });
    server.set_logger([this](const httplib::Request& request, const httplib::Response& response) {
      // Paths that are not there would make as many series.
      constexpr std::array<std::string_view, 9> kPaths = {"/",         "/v1/completions", "/v1/chat/completions", "/v1/models",
                                                          "/tokenize", "/detokenize",     "/tokenizer_info",      "/health",
                                                          "/metrics"};
      const bool is_known = std::find(kPaths.begin(), kPaths.end(), request.path) != kPaths.end();
      const std::lock_guard lock(metrics_mutex);
      metrics.requests.Add({{"path", is_known ? request.path : "other"}, {"status", std::to_string(response.status)}}).Increment();
    });
    server.Get("/", guarded([](const auto&, auto& response) {
                 response.set_header("X-Frame-Options", "DENY");
                 response.set_content(kPage.data(), kPage.size(), "text/html; charset=utf-8");
               }));
    server.Post("/v1/completions", guarded([this](const auto& request, auto& response) {
                  answer(completion_request(parsed_body(request.body), language), response);
                }));
    server.Post("/v1/chat/completions", guarded([this](const auto& request, auto& response) {
                  answer(chat_request(parsed_body(request.body), language), response);
                }));
    server.Get("/v1/models", guarded([this](const auto&, auto& response) {
                 say(response, 200,
                     {{"object", "list"},
                      {"data",
                       {{{"id", options.model},
                         {"object", "model"},
                         {"created", now_s()},
                         {"owned_by", "ingot"},
                         {"max_model_len", language.context}}}}});
               }));
    server.Post("/tokenize", guarded([this](const auto& request, auto& response) { tokenize(parsed_body(request.body), response); }));
    server.Post("/detokenize", guarded([this](const auto& request, auto& response) { detokenize(parsed_body(request.body), response); }));
    server.Get("/tokenizer_info", guarded([this](const auto&, auto& response) { tokenizer_info(response); }));
    server.Get("/health", guarded([this](const auto&, auto& response) {
                 if (is_draining) refuse(response, 503, "the server is stopping");
                 else say(response, 200, {{"status", "ok"}});
               }));
    server.Get("/metrics", guarded([this](const auto&, auto& response) {
                 const std::lock_guard lock(metrics_mutex);
                 response.set_content(metrics.text(engine.counts()), "text/plain; version=0.0.4");
               }));
  }

  template <class Handler>
  httplib::Server::Handler guarded(Handler handler) {
    return [this, handler](const httplib::Request& request, httplib::Response& response) {
      try {
        handler(request, response);
      } catch (const RequestError& failure) {
        refuse(response, 400, failure.what(), failure.field());
      } catch (const base::UsageError& failure) {
        refuse(response, 400, failure.what());
      } catch (const BusyError& failure) {
        refuse(response, is_draining ? 503 : 429, failure.what());
      } catch (const std::exception& failure) {
        base::log_warning("a request has failed: {}", base::message_of(failure));
        refuse(response, 500, std::string(base::message_of(failure)));
      }
    };
  }

  void answer(CompletionRequest request, httplib::Response& response) {
    auto answer = std::make_shared<Answer>();
    answer->request = std::move(request);
    answer->id = fmt::format("{}-{:08x}{:x}", answer->request.is_chat ? "chatcmpl" : "cmpl", own_id, next_id++);
    auto texts = engine.submit_all(answer->request.texts);
    for (size_t i = 0; i < texts.size(); ++i)
      answer->texts.push_back(std::make_unique<AnsweredText>(answer->request.texts[i], answer->request, language, std::move(texts[i])));
    http::Server::keep_until_sent(std::make_shared<Counted>(answers));
    if (answer->request.streams) stream(answer, response);
    else whole(*answer, response);
  }

  // A piece of the text, whichever has one; the prompts' texts by turns.
  ordered_json next_of(Answer& answer, AnsweredText& text, size_t index, milliseconds most) {
    auto piece = text.next(most);
    if (piece.is_null()) return piece;
    if (!std::exchange(answer.has_begun, true)) {
      const std::lock_guard lock(metrics_mutex);
      metrics.first_token.Observe(std::chrono::duration<double>(Clock::now() - answer.begin).count());
    }
    piece["index"] = index;
    return piece;
  }

  bool is_late(const Answer& answer) const {
    return std::chrono::duration<double>(Clock::now() - answer.begin).count() > options.timeout_s;
  }

  ordered_json envelope(const Answer& answer, bool is_piece) const {
    const char* object = !answer.request.is_chat ? "text_completion" : is_piece ? "chat.completion.chunk" : "chat.completion";
    return {{"id", answer.id}, {"object", object}, {"created", answer.created}, {"model", options.model}};
  }

  void whole(Answer& answer, httplib::Response& response) {
    for (size_t i = 0; i < answer.texts.size(); ++i)
      while (!answer.texts[i]->has_ended()) {
        next_of(answer, *answer.texts[i], i, kSlice);
        if (http::Server::client_has_left()) return refuse(response, 499, "the client has left");
        if (is_late(answer)) return refuse(response, 504, fmt::format("the answer takes longer than {} s", options.timeout_s));
      }
    auto document = envelope(answer, /*is_piece=*/false);
    document["choices"] = ordered_json::array();
    const auto choices = static_cast<size_t>(answer.request.choices), shown = static_cast<size_t>(answer.request.shown);
    for (size_t first = 0; first < answer.texts.size(); first += choices) {
      std::vector<const AnsweredText*> best;
      for (size_t i = first; i < first + choices; ++i) best.push_back(answer.texts[i].get());
      if (choices > shown)
        std::stable_sort(best.begin(), best.end(), [](const auto* a, const auto* b) { return a->mean_logprob() > b->mean_logprob(); });
      for (size_t i = 0; i < shown; ++i) {
        document["choices"].push_back(best[i]->whole());
        document["choices"].back()["index"] = document["choices"].size() - 1;
      }
    }
    document["usage"] = answer.usage();
    say(response, 200, document);
  }

  // Server-sent events.
  void stream(const std::shared_ptr<Answer>& answer, httplib::Response& response) {
    response.set_header("Cache-Control", "no-store");
    response.set_chunked_content_provider("text/event-stream", [this, answer](size_t, httplib::DataSink& sink) {
      const auto write = [&](const std::string& data) {
        const auto event = "data: " + data + "\n\n";
        return sink.write(event.data(), event.size());
      };
      try {
        return events(*answer, sink, write);
      } catch (const std::exception& failure) {
        write(dumped({{"error", {{"message", std::string(base::message_of(failure))}, {"type", "server_error"}, {"code", 500}}}}));
        sink.done();
        return true;
      }
    });
  }

  template <class Write>
  bool events(Answer& answer, httplib::DataSink& sink, const Write& write) {
    const auto piece_of = [&](ordered_json choices) {
      auto document = envelope(answer, /*is_piece=*/true);
      document["choices"] = std::move(choices);
      if (answer.request.streams_usage) document["usage"] = nullptr;
      return document;
    };
    if (answer.request.is_chat && !std::exchange(answer.has_said_who, true)) {  // who speaks comes first
      for (size_t i = 0; i < answer.texts.size(); ++i)
        if (!write(dumped(piece_of(
                {{{"index", i}, {"delta", {{"role", "assistant"}, {"content", ""}}}, {"logprobs", nullptr}, {"finish_reason", nullptr}}}))))
          return false;
    }
    if (!sink.is_writable()) return false;
    if (is_late(answer)) throw base::Error(fmt::format("the answer takes longer than {} s", options.timeout_s));
    const auto& changes = answer.texts[0]->text().changes();
    const auto seen = changes.count();
    bool are_all_done = true, is_news = false;
    for (size_t i = 0; i < answer.texts.size(); ++i) {
      auto& text = *answer.texts[i];
      if (text.has_ended()) continue;
      const auto piece = next_of(answer, text, i, milliseconds(0));
      is_news = is_news || !piece.is_null();
      if (!piece.is_null() && !write(dumped(piece_of({piece})))) return false;
      are_all_done = are_all_done && text.has_ended();
    }
    if (!are_all_done && !is_news) changes.wait(seen, kSlice);
    if (!are_all_done) return true;
    if (answer.request.streams_usage) {
      auto document = envelope(answer, /*is_piece=*/true);
      document["choices"] = ordered_json::array();
      document["usage"] = answer.usage();
      if (!write(dumped(document))) return false;
    }
    write("[DONE]");
    sink.done();
    return true;
  }

  void tokenize(const ordered_json& body, httplib::Response& response) {
    std::vector<int64_t> ids;
    const bool adds = body.value("add_special_tokens", ordered_json(true)) != false;
    if (body.contains("messages")) {
      ids = chat_request(ordered_json{{"messages", body.at("messages")}}, language).texts.at(0).prompt;
    } else {
      if (!body.contains("prompt") || !body.at("prompt").is_string()) throw RequestError("prompt", "prompt is no text");
      const auto text = body.at("prompt").get<std::string>();
      check_length(text, language, "prompt");
      const auto found = adds ? language.tokenizer->encode_with_special(text) : language.tokenizer->encode(text);
      ids.assign(found.begin(), found.end());
    }
    say(response, 200, {{"count", ids.size()}, {"max_model_len", language.context}, {"tokens", ids}});
  }

  void detokenize(const ordered_json& body, httplib::Response& response) {
    if (!body.contains("tokens") || !body.at("tokens").is_array()) throw RequestError("tokens", "tokens is no list of token ids");
    std::vector<int32_t> ids;
    for (const auto& id : body.at("tokens")) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= language.tokenizer->vocab_size())
        throw RequestError("tokens", fmt::format("tokens has {}, which is no token id", id.dump().substr(0, 100)));
      ids.push_back(id.get<int32_t>());
    }
    say(response, 200, {{"prompt", language.tokenizer->decode(ids, /*keep_special=*/true)}});
  }

  void tokenizer_info(httplib::Response& response) {
    const auto& tokenizer = *language.tokenizer;
    const auto piece = [&](int32_t id) { return id >= 0 ? ordered_json(tokenizer.piece(id)) : ordered_json(); };
    const auto& special = tokenizer.special();
    say(response, 200,
        {{"tokenizer_class", "PreTrainedTokenizerFast"},
         {"bos_token", piece(special.bos)},
         {"eos_token", piece(special.eos)},
         {"pad_token", piece(special.pad)},
         {"unk_token", piece(special.unk)},
         {"vocab_size", tokenizer.vocab_size()},
         {"model_max_length", language.context},
         {"chat_template", language.chat_template ? ordered_json(language.chat_template->source()) : ordered_json()}});
  }

  class Counted {
   public:
    explicit Counted(std::atomic<int64_t>& count) : count_(count) { ++count_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
    ~Counted() { --count_; }

   private:
    std::atomic<int64_t>& count_;
  };
};

ApiServer::ApiServer(Engine& engine, const Language& language, ServerOptions options)
    : state_(std::make_unique<State>(engine, language, std::move(options))) {
  state_->configure();
  state_->port = state_->server.start(state_->options.host, state_->options.port);
  if (state_->port <= 0)
    throw base::UsageError("cannot listen at {}:{}: the address is taken, not this machine's, or needs root; --port takes another one",
                           state_->options.host, state_->options.port);
}

ApiServer::~ApiServer() = default;

int ApiServer::port() const { return state_->port; }

void ApiServer::drain(double seconds) {
  state_->is_draining = true;
  state_->engine.close();
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  while (state_->answers > 0 && Clock::now() < until) std::this_thread::sleep_for(milliseconds(10));
}

}  // namespace ingot::serve
