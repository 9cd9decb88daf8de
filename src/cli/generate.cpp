// `ingot generate`: continues a text.
#include "cli/engine_flags.h"

namespace ingot::cli {

struct GenerateOptions {
  std::string model, prompt, tokenizer;
  int64_t tokens = 100, top_k = 0, seed = 0;
  double temperature = 0, top_p = 1;
  bool ignores_eos = false;
  EngineFlags engine;
};

#ifndef INGOT_COMPUTES
void add_generate(Flags& flags) {
  const auto values = std::make_shared<GenerateOptions>();
  auto& o = *values;
  auto& verb = flags.verb("generate", "continue a text with a trained model", values);
  verb.add_option("--model", o.model, "an archive, an ingot checkpoint or run directory, or a Hugging Face folder")->required();
  verb.add_option("--prompt", o.prompt, "text to continue");
  verb.add_option("--tokenizer", o.tokenizer, "tokenizer file or folder (default: the model's own)");
  verb.add_option("--tokens", o.tokens, "most new tokens")->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  verb.add_option("--temperature", o.temperature, "0 = always the likeliest token")->check(CLI::Range(0.0, 100.0));
  verb.add_option("--top-k", o.top_k, "draw from the k likeliest; 0 = all")->check(kNotNegative);
  verb.add_option("--top-p", o.top_p, "draw from the likeliest whose probabilities sum to p")->check(CLI::Range(0.0, 1.0));
  verb.add_option("--seed", o.seed, "of the draws")->check(kNotNegative);
  verb.add_flag("--ignore-eos", o.ignores_eos, "go on to --tokens behind a token that ends a text");
  add_engine(verb, o.engine);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <chrono>
#include <cstdio>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/share_cores.h"
#include "comm/world.h"
#include "resilience/stop_signal.h"
#include "serve/engine/engine.h"
#include "serve/engine/runner.h"
#include "serve/load_model.h"

namespace ingot::cli {
namespace {

struct Generated {
  std::vector<int64_t> ids;
  serve::EngineCounts counts;
  double seconds = 0;  // without loading
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Generated generate(serve::Engine& engine, serve::TextRequest request, const resilience::StopSignal& stop,
                   const std::function<void(int64_t)>& on_token) {
  const auto start = std::chrono::steady_clock::now();
  const auto text = engine.submit(std::move(request));
  Generated made;
  for (auto ended = serve::Ended::not_yet; ended == serve::Ended::not_yet;) {
    if (stop.received() != 0) text->cancel();
    const auto news = text->wait(std::chrono::milliseconds(100));
    for (const auto& token : news.tokens) {
      made.ids.push_back(token.id);
      on_token(token.id);
    }
    ended = news.ended;
  }
  if (!text->failure().empty()) throw base::Error(text->failure());
  made.seconds = seconds_since(start);
  made.counts = engine.counts();
  return made;
}

}  // namespace

int run_generate(const Call& call) {
  const auto& o = call.options<GenerateOptions>();
  const auto ranks = comm::rank_environment(base::environment());
  comm::share_cores(ranks);
  const auto world = ranks.size > 1 ? comm::World::join(ranks, /*is_gpu=*/false, {}) : nullptr;
  auto* const group = world ? &world->everyone() : nullptr;
  const auto& how = o.engine;
  auto loaded = serve::load_model_over(o.model, serve::dtype_named(how.dtype), at::kCPU, group, how.axis);
  const auto& tokenizer = serve::tokenizer_for(loaded, o.tokenizer);
  std::optional<serve::LoadedModel> drafts;
  if (!how.draft_model.empty()) drafts = serve::load_model(how.draft_model, serve::dtype_named(how.dtype), at::kCPU);
  const serve::EngineOptions options{.most_cached_tokens = std::numeric_limits<int64_t>::max(),
                                     .weights = serve::weight_format_named(how.weights),
                                     .most_kept_bytes = 0,
                                     .most_drafts = how.most_drafts(),
                                     .draft_model = drafts ? drafts->model.get() : nullptr,
                                     .drafts_itself = how.drafts_itself,
                                     .ranks = group};
  const resilience::StopSignal stop("", resilience::SecondSignal::ends_at_once);  // the other ranks end with the first
  if (group && group->rank() > 0) {
    serve::Engine::follow(*loaded.model, options);
    return 0;
  }

  std::vector<int64_t> prompt;
  if (tokenizer.special().bos >= 0) prompt.push_back(tokenizer.special().bos);
  for (const int32_t id : tokenizer.encode(o.prompt)) prompt.push_back(id);
  if (prompt.empty() && tokenizer.special().eos >= 0) prompt.push_back(tokenizer.special().eos);

  data::StreamDecoder shown(tokenizer);
  std::string text;
  const auto show = [&](const std::string& part) {
    text += part;
    if (call.json) return;
    std::fputs(part.c_str(), stdout);
    std::fflush(stdout);
  };
  if (prompt.empty())
    throw base::UsageError("the prompt has no tokens; give some text, or a tokenizer that begins a document with a token");
  const auto longest = static_cast<int64_t>(prompt.size()) + o.tokens, known = loaded.model->config().max_positions;
  if (longest > known)
    base::log_warning("the text may grow to {} tokens; the model was made for {} (model.max_positions) and may lose the thread beyond",
                      longest, known);
  serve::TextRequest request{.prompt = prompt, .most_tokens = o.tokens};
  request.sampling = {.temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p, .seed = static_cast<uint64_t>(o.seed)};
  if (!o.ignores_eos) {
    request.stop_ids = serve::ends_of(loaded);
    if (tokenizer.special().eos >= 0) request.stop_ids.push_back(tokenizer.special().eos);
  }
  const int32_t vocab = tokenizer.vocab_size();
  serve::Engine engine(*loaded.model, options);
  if (!call.json) std::fputs(o.prompt.c_str(), stdout);  // not before everything that can be refused
  const auto made = generate(engine, std::move(request), stop, [&](int64_t id) {
    if (id < vocab) show(shown.push(static_cast<int32_t>(id)));  // a padded vocabulary has rows without a token
  });
  show(shown.finish());
  if (call.json) {
    std::printf("%s\n", nlohmann::json{{"prompt", o.prompt},
                                       {"text", text},
                                       {"ids", made.ids},
                                       {"tokens_per_s", static_cast<double>(made.ids.size()) / made.seconds},
                                       {"passes", made.counts.passes},
                                       {"drafts_taken", made.counts.drafts_taken}}
                            .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
                            .c_str());
  } else {
    std::fputs("\n", stdout);
    std::fflush(stdout);
    base::log_info("{} tokens, {:.1f} tokens/s{}", made.ids.size(), static_cast<double>(made.ids.size()) / made.seconds,
                   made.counts.drafted > 0 ? fmt::format(", {} passes, {} drafts taken of {}", made.counts.passes, made.counts.drafts_taken,
                                                         made.counts.drafted)
                                           : std::string());
  }
  return 0;
}

}  // namespace ingot::cli
#endif
