// `ingot serve`: a model behind OpenAI's interface.
#include "cli/engine_flags.h"

namespace ingot::cli {

struct ServeOptions {
  std::string model, tokenizer, host = "127.0.0.1", name, api_key, chat_template;
  EngineFlags engine;
  int64_t port = 8000, context = 0, texts = 64, waiting = 256, pass_tokens = 512, cached_tokens = 0, prefix_cache_mib = 1024;
  double timeout_s = 600, drain_s = 30;
};

#ifndef INGOT_COMPUTES
void add_serve(Flags& flags) {
  const auto values = std::make_shared<ServeOptions>();
  auto& o = *values;
  auto& verb = flags.verb("serve", "answer requests to a model over HTTP, as OpenAI's API has them, until Ctrl-C", values);
  verb.add_option("model", o.model, "an archive, an ingot checkpoint or run directory, or a Hugging Face folder")->required();
  verb.add_option("--tokenizer", o.tokenizer, "tokenizer file or folder (default: the model's own)");
  verb.add_option("--chat-template", o.chat_template, "a Jinja file (default: the tokenizer's own)");
  add_engine(verb, o.engine);
  verb.add_option("--host", o.host, "address to listen at; 0.0.0.0 for every one of this machine's")->capture_default_str();
  verb.add_option("--port", o.port, "0 takes a free one")->check(CLI::Range(0, 65535))->capture_default_str();
  verb.add_option("--name", o.name, "what answers call the model (default: the name of its folder)");
  verb.add_option("--api-key", o.api_key, "that requests must have (default: $INGOT_API_KEY, or none)");
  verb.add_option("--context", o.context, "most tokens of a prompt and its text (default: the model's)")->check(kPositive);
  verb.add_option("--texts", o.texts, "most texts that are continued at once")->check(CLI::Range(1, 4096))->capture_default_str();
  verb.add_option("--waiting", o.waiting, "most texts that wait behind them; more are refused (429)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  verb.add_option("--pass-tokens", o.pass_tokens, "tokens in one pass: pieces of prompts fill what texts under way leave")
      ->check(kPositive)
      ->capture_default_str();
  verb.add_option("--cached-tokens", o.cached_tokens, "most tokens of all texts under way (default: 16 times the context)")
      ->check(kPositive);
  verb.add_option("--prefix-cache", o.prefix_cache_mib, "MiB that stay for texts with an equal beginning; 0: none")
      ->check(kNotNegative)
      ->capture_default_str();
  verb.add_option("--timeout", o.timeout_s, "seconds for a whole answer")->check(CLI::Range(0.1, 86400.0))->capture_default_str();
  verb.add_option("--drain", o.drain_s, "seconds that answers under way have left after Ctrl-C or SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/share_cores.h"
#include "comm/world.h"
#include "resilience/stop_signal.h"
#include "serve/api/server.h"
#include "serve/engine/runner.h"
#include "serve/load_model.h"

namespace ingot::cli {

namespace fs = std::filesystem;

namespace {

// Without one that can be used there are no chats; one that is named must be good.
std::optional<data::chat::ChatTemplate> chat_template_of(const serve::LoadedModel& loaded, const std::string& named) {
  try {
    return serve::chat_template_of(loaded, named);
  } catch (const base::DataError& failure) {
    if (!named.empty()) throw;
    base::log_warning("{}; /v1/chat/completions is not answered", failure.what());
    return std::nullopt;
  }
}

// Each client takes a descriptor; many systems allow a program 1,024 unless it asks for more.
void allow_many_connections() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int run_serve(const Call& call) {
  const auto& o = call.options<ServeOptions>();
  allow_many_connections();
  const auto ranks = comm::rank_environment(base::environment());
  comm::share_cores(ranks);
  const auto world = ranks.size > 1 ? comm::World::join(ranks, /*is_gpu=*/false, {}) : nullptr;
  auto* const group = world ? &world->everyone() : nullptr;
  auto loaded = serve::load_model_over(o.model, serve::dtype_named(o.engine.dtype), at::kCPU, group, o.engine.axis);
  std::optional<serve::LoadedModel> drafts;
  if (!o.engine.draft_model.empty()) drafts = serve::load_model(o.engine.draft_model, serve::dtype_named(o.engine.dtype), at::kCPU);
  const auto& tokenizer = serve::tokenizer_for(loaded, o.tokenizer);
  const auto chat_template = chat_template_of(loaded, o.chat_template);
  const serve::Language language{.tokenizer = &tokenizer,
                                 .chat_template = chat_template ? &*chat_template : nullptr,
                                 .context = o.context > 0 ? o.context : loaded.model->config().max_positions,
                                 .ends = serve::ends_of(loaded),
                                 .most_texts = o.texts + o.waiting};
  const resilience::StopSignal stop("finishing the answers under way; a second signal ends at once\n",
                                    resilience::SecondSignal::ends_at_once);
  const serve::EngineOptions options{.most_texts = o.texts,
                                     .most_waiting = o.waiting,
                                     .pass_tokens = o.pass_tokens,
                                     .most_cached_tokens = o.cached_tokens > 0 ? o.cached_tokens : 16 * language.context,
                                     .weights = serve::weight_format_named(o.engine.weights),
                                     .most_kept_bytes = o.prefix_cache_mib << 20,
                                     .most_drafts = o.engine.most_drafts(),
                                     .draft_model = drafts ? drafts->model.get() : nullptr,
                                     .drafts_itself = o.engine.drafts_itself,
                                     .ranks = group};
  if (group && group->rank() > 0) {
    serve::Engine::follow(*loaded.model, options);
    return 0;
  }
  serve::Engine engine(*loaded.model, options);
  const char* key = std::getenv("INGOT_API_KEY");
  const auto name = fs::absolute(fs::path(o.model) / ".").parent_path().filename().string();
  serve::ApiServer server(engine, language,
                          {.host = o.host,
                           .port = static_cast<int>(o.port),
                           .model = o.name.empty() ? name : o.name,
                           .api_key = !o.api_key.empty() ? o.api_key
                                      : key              ? key
                                                         : "",
                           .timeout_s = o.timeout_s,
                           .connections = static_cast<size_t>(o.texts + o.waiting + 32)});
  base::log_info("{} answers at http://{}:{}/v1 ({} tokens of context{}); Ctrl-C ends", o.name.empty() ? name : o.name, o.host,
                 server.port(), language.context, chat_template ? ", with a chat template" : "");
  while (stop.received() == 0 && engine.failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server.drain(o.drain_s);
  if (const auto failure = engine.failure(); !failure.empty()) throw base::Error(failure);
  const auto counts = engine.counts();
  base::log_info("{} texts of {} tokens, {} tokens of prompts", counts.finished, counts.text_tokens, counts.prompt_tokens);
  return 0;
}

}  // namespace ingot::cli
#endif
