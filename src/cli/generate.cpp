// `ingot generate`: continues a text.
#include "cli/verb.h"

namespace ingot::cli {

struct GenerateOptions {
  std::string model, prompt, tokenizer, dtype, weights = "same", draft_model;
  int64_t tokens = 100, top_k = 0, seed = 0, draft_tokens = 0;
  double temperature = 0, top_p = 1;
  bool drafts = false;
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
  verb.add_flag("--drafts", o.drafts,
                "take what a model with model.draft_block drafts where it is what the model would choose: the same text, faster");
  verb.add_option("--draft-tokens", o.draft_tokens,
                  "most tokens that are guessed for one pass, from the text itself or by --draft-model: the same text, faster")
      ->check(CLI::Range(0, 31));
  verb.add_option("--draft-model", o.draft_model, "a smaller model with the same tokenizer (with --draft-tokens 4 where none are given)");
  verb.add_option("--dtype", o.dtype, "fp32 or bf16 (default: an archive's own, else fp32)")
      ->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
  verb.add_option("--weights", o.weights, "same: as --dtype; int8 or int4: in fewer bits, read faster, at a loss")
      ->check(CLI::IsMember({"same", "int8", "int4"}))
      ->capture_default_str();
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <chrono>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/share_cores.h"
#include "comm/world.h"
#include "serve/engine/engine.h"
#include "serve/engine/runner.h"
#include "serve/generate.h"
#include "serve/load_model.h"

namespace ingot::cli {
namespace {

// Several ranks hold the model and the cache together, by the tensor_sequence axis.
parallel::Layout spread_over(comm::World& world) {
  parallel::Layout layout;
  auto* group = &world.everyone();
  layout.tensor_sequence = {.rank = world.rank(), .size = world.size(), .group = group};
  layout.sequence = {{.rank = world.rank(), .size = world.size()}, group, &parallel::kAllGather};
  return layout;
}

struct Generated {
  std::vector<int64_t> ids;
  int64_t passes = 0, drafted = 0, taken = 0;
  double seconds = 0;  // without loading
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// On one rank.
Generated generate_by_engine(models::Model& model, const std::vector<int64_t>& prompt, const GenerateOptions& o, int64_t eos,
                             const serve::SamplingOptions& sampling, const std::function<bool(int64_t)>& on_token) {
  std::optional<serve::LoadedModel> drafts;
  if (!o.draft_model.empty()) drafts = serve::load_model(o.draft_model, serve::dtype_named(o.dtype), at::kCPU);
  serve::Engine engine(model, {.most_cached_tokens = std::numeric_limits<int64_t>::max(),
                               .weights = serve::weight_format_named(o.weights),
                               .most_kept_bytes = 0,
                               .most_drafts = drafts && o.draft_tokens == 0 ? 4 : o.draft_tokens,
                               .draft_model = drafts ? drafts->model.get() : nullptr});
  serve::TextRequest request{.prompt = prompt, .most_tokens = o.tokens, .sampling = sampling};
  if (eos >= 0) request.stop_ids = {eos};
  const auto start = std::chrono::steady_clock::now();
  const auto text = engine.submit(std::move(request));
  Generated made;
  for (auto ended = serve::Ended::not_yet; ended == serve::Ended::not_yet;) {
    const auto news = text->wait(std::chrono::seconds(1));
    for (const auto& token : news.tokens) {
      made.ids.push_back(token.id);
      on_token(token.id);
    }
    ended = news.ended;
  }
  if (!text->failure().empty()) throw base::Error(text->failure());
  made.seconds = seconds_since(start);
  const auto counts = engine.counts();
  made.passes = counts.passes, made.drafted = counts.drafted, made.taken = counts.drafts_taken;
  return made;
}

// By the tensor_sequence axis, or with the drafts that the model makes itself.
Generated generate_by_rows(models::Model& model, const std::vector<int64_t>& prompt, const GenerateOptions& o, int64_t eos,
                           const serve::SamplingOptions& sampling, const std::function<bool(int64_t)>& on_token) {
  const auto start = std::chrono::steady_clock::now();
  if (!o.drafts) {
    Generated made{.ids = serve::generate(model, prompt, o.tokens, eos, sampling, on_token)};
    made.passes = static_cast<int64_t>(made.ids.size()), made.seconds = seconds_since(start);
    return made;
  }
  serve::DraftCounts counts;
  auto ids = serve::generate_with_drafts(model, prompt, o.tokens, eos, sampling, on_token, &counts);
  return {std::move(ids), counts.passes, counts.drafted, counts.taken, seconds_since(start)};
}

}  // namespace

int run_generate(const Call& call) {
  const auto& o = call.options<GenerateOptions>();
  const auto ranks = comm::rank_environment(base::environment());
  comm::share_cores(ranks);
  const auto world = ranks.size > 1 ? comm::World::join(ranks, /*is_gpu=*/false, {}) : nullptr;
  const bool speaks = ranks.rank == 0;
  auto loaded = serve::load_model(o.model, serve::dtype_named(o.dtype), at::kCPU, world ? spread_over(*world) : parallel::Layout{});
  const auto& tokenizer = serve::tokenizer_for(loaded, o.tokenizer);
  if (world && (o.draft_tokens > 0 || !o.draft_model.empty() || o.weights != "same"))
    throw base::UsageError("--draft-tokens, --draft-model and --weights are for one rank");
  if (o.drafts && (o.draft_tokens > 0 || !o.draft_model.empty() || o.weights != "same"))
    throw base::UsageError(
        "--drafts takes the model's own drafts, with its weights as they are; leave --draft-tokens, --draft-model and --weights out");

  std::vector<int64_t> prompt;
  if (tokenizer.special().bos >= 0) prompt.push_back(tokenizer.special().bos);
  for (const int32_t id : tokenizer.encode(o.prompt)) prompt.push_back(id);
  if (prompt.empty() && tokenizer.special().eos >= 0) prompt.push_back(tokenizer.special().eos);

  data::StreamDecoder shown(tokenizer);
  std::string text;
  const auto show = [&](const std::string& part) {
    text += part;
    if (call.json || !speaks) return;
    std::fputs(part.c_str(), stdout);
    std::fflush(stdout);
  };
  if (!call.json && speaks) std::fputs(o.prompt.c_str(), stdout);
  const serve::SamplingOptions sampling{
      .temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p, .seed = static_cast<uint64_t>(o.seed)};
  const int32_t vocab = tokenizer.vocab_size();
  const auto on_token = [&](int64_t id) {
    if (id < vocab) show(shown.push(static_cast<int32_t>(id)));  // a padded vocabulary has rows without a token
    return true;
  };
  if (prompt.empty())
    throw base::UsageError("the prompt has no tokens; give some text, or a tokenizer that begins a document with a token");
  const auto made =
      (world || o.drafts ? generate_by_rows : generate_by_engine)(*loaded.model, prompt, o, tokenizer.special().eos, sampling, on_token);
  show(shown.finish());
  if (!speaks) return 0;
  if (call.json) {
    std::printf("%s\n", nlohmann::json{{"prompt", o.prompt},
                                       {"text", text},
                                       {"ids", made.ids},
                                       {"tokens_per_s", static_cast<double>(made.ids.size()) / made.seconds},
                                       {"passes", made.passes},
                                       {"drafts_taken", made.taken}}
                            .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
                            .c_str());
  } else {
    std::fputs("\n", stdout);
    std::fflush(stdout);
    base::log_info(
        "{} tokens, {:.1f} tokens/s{}", made.ids.size(), static_cast<double>(made.ids.size()) / made.seconds,
        made.drafted > 0 ? fmt::format(", {} passes, {} drafts taken of {}", made.passes, made.taken, made.drafted) : std::string());
  }
  return 0;
}

}  // namespace ingot::cli
#endif
