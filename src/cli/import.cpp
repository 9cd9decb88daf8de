#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/verbs.h"
#include "data/export_tokenizer.h"
#include "serve/load_model.h"
#include "train/checkpointing.h"
#include "train/config.h"

namespace ingot::cli {

int run_import(const Options& all) {
  namespace fs = std::filesystem;
  const auto& o = all.checkpoint;
  if (!fs::exists(fs::path(o.path) / "config.json"))
    throw base::ModelError("{} has no config.json: it is not a Hugging Face folder", o.path);
  const fs::path run = o.output, checkpoints = run / "checkpoints";
  if (!checkpoint::all(checkpoints).empty())
    throw base::ConfigError("{} holds checkpoints already; choose another --output", checkpoints.string());
  const auto loaded = serve::load_model(o.path, at::kFloat, at::kCPU);  // fp32 holds the values of every dtype that models come in
  train::RunConfig config;
  config.model = loaded.model->config();
  const auto report = train::save_weights(checkpoints, *loaded.model, train::settings_of(config).dump_toml());
  if (loaded.tokenizer) {
    base::make_directories(run / "tokenizer");
    data::export_tokenizer(*loaded.tokenizer, run / "tokenizer");
  }
  const auto parameters = loaded.model->parameters().trained_elements();
  if (all.json) {
    std::printf("%s\n", nlohmann::json{{"path", report.path.string()},
                                       {"bytes", report.data_bytes},
                                       {"parameters", parameters},
                                       {"tokenizer", loaded.tokenizer != nullptr}}
                            .dump(2)
                            .c_str());
    return 0;
  }
  base::log_info("wrote {}; a run with --run-dir {} and the [model] of its record config.toml goes on from these weights",
                 report.path.string(), o.output);
  return 0;
}

}  // namespace ingot::cli
