// `ingot generate`: continues a text.
#include "cli/verb.h"

namespace ingot::cli {

struct GenerateOptions {
  std::string model, prompt, tokenizer, dtype, weights = "same";
  int64_t tokens = 100, top_k = 0, seed = 0;
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
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/share_cores.h"
#include "comm/world.h"
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

}  // namespace

int run_generate(const Call& call) {
  const auto& o = call.options<GenerateOptions>();
  const auto ranks = comm::rank_environment(base::environment());
  comm::share_cores(ranks);
  const auto world = ranks.size > 1 ? comm::World::join(ranks, /*is_gpu=*/false, {}) : nullptr;
  const bool speaks = ranks.rank == 0;
  auto loaded = serve::load_model(o.model, serve::dtype_named(o.dtype), at::kCPU, world ? spread_over(*world) : parallel::Layout{});
  const auto& tokenizer = serve::tokenizer_for(loaded, o.tokenizer);
  const auto decoder = serve::make_decoder(*loaded.model, serve::weight_format_named(o.weights));

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
  const auto start = std::chrono::steady_clock::now();
  const serve::SamplingOptions sampling{
      .temperature = o.temperature, .top_k = o.top_k, .top_p = o.top_p, .seed = static_cast<uint64_t>(o.seed)};
  const int32_t vocab = tokenizer.vocab_size();
  const auto on_token = [&](int64_t id) {
    if (id < vocab) show(shown.push(static_cast<int32_t>(id)));  // a padded vocabulary has rows without a token
    return true;
  };
  serve::DraftCounts drafted;
  const auto ids = o.drafts
                       ? serve::generate_with_drafts(*loaded.model, prompt, o.tokens, tokenizer.special().eos, sampling, on_token, &drafted)
                       : serve::generate(*loaded.model, prompt, o.tokens, tokenizer.special().eos, sampling, on_token, decoder.get());
  show(shown.finish());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!speaks) return 0;
  if (call.json) {
    std::printf("%s\n", nlohmann::json{{"prompt", o.prompt},
                                       {"text", text},
                                       {"ids", ids},
                                       {"tokens_per_s", static_cast<double>(ids.size()) / seconds},
                                       {"passes", o.drafts ? drafted.passes : static_cast<int64_t>(ids.size())},
                                       {"drafts_taken", drafted.taken}}
                            .dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
                            .c_str());
  } else {
    std::fputs("\n", stdout);
    std::fflush(stdout);
    base::log_info(
        "{} tokens, {:.1f} tokens/s{}", ids.size(), static_cast<double>(ids.size()) / seconds,
        o.drafts ? fmt::format(", {} passes, {} drafts taken of {}", drafted.passes, drafted.taken, drafted.drafted) : std::string());
  }
  return 0;
}

}  // namespace ingot::cli
#endif
