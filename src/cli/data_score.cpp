// `ingot data score`: what a frozen model makes of the documents of a dataset, for train.dpo_beta.
#include "cli/verb.h"

namespace ingot::cli {

struct ScoreCommand {
  std::string path, model, dtype = "fp32", device = "auto";
  int64_t row_tokens = 4096;
};

#ifndef INGOT_COMPUTES
void add_data_score(Flags& flags) {
  const auto values = std::make_shared<ScoreCommand>();
  auto& o = *values;
  auto& verb =
      flags.verb("data", "score", "write PREFIX.reference: the log-probability of each document's learned tokens under a model", values);
  verb.add_option("prefix", o.path, "prefix of the .bin and .idx files")->required();
  verb.add_option("--model", o.model, "the reference: a run directory, a checkpoint or a Hugging Face folder")->required();
  verb.add_option("--dtype", o.dtype, "of the computation")->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
  verb.add_option("--device", o.device, "auto, cpu or cuda")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  verb.add_option("--row-tokens", o.row_tokens, "tokens that are computed at once")->check(kPositive);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/log.h"
#include "base/progress.h"
#include "data/reference_scores.h"
#include "device/device.h"
#include "layers/dtype.h"
#include "serve/load_model.h"
#include "serve/score.h"

namespace ingot::cli {

int run_data_score(const Call& call) {
  const auto& o = call.options<ScoreCommand>();
  if (data::is_url(o.path)) throw base::UsageError("{}: scores are written beside the data set, which must be local", o.path);
  const data::IndexedDataset dataset(o.path);
  const auto loaded = serve::load_model(o.model, layers::precision_named(o.dtype).dtype, device::device_named(o.device));
  base::ProgressBar bar("scoring", dataset.documents(), base::ProgressUnit::count);
  const auto scores =
      serve::score_documents(*loaded.model, dataset, {.row_tokens = o.row_tokens, .progress = [&](int64_t done) { bar.update(done); }});
  data::write_reference_scores(dataset, scores);
  const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
  bar.finish(fmt::format("{} documents", scores.size()));
  const auto file = dataset.prefix().string() + ".reference";
  if (call.json)
    std::printf("%s\n", nlohmann::json{{"output", file}, {"documents", scores.size()}, {"log_probability", sum}}.dump(2).c_str());
  else base::log_info("wrote {}: {:.2f} nats a document", file, -sum / static_cast<double>(scores.size()));
  return 0;
}

}  // namespace ingot::cli
#endif
