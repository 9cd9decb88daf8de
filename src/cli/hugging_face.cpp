// `ingot checkpoint export-hf` and `import-hf`: models as Hugging Face folders.
#include "cli/verb.h"

namespace ingot::cli {

struct HuggingFaceOptions {
  std::string path, output, tokenizer, dtype = "bf16";
  double shard_gb = 5;
  bool adapters = false;
  std::string base;
};

#ifndef INGOT_COMPUTES
void add_hugging_face(Flags& flags) {
  const auto values = std::make_shared<HuggingFaceOptions>();
  auto& o = *values;
  auto& out = flags.verb("checkpoint", "export-hf", "write a Hugging Face folder", values);
  out.add_option("path", o.path, "checkpoint, run directory or archive")->required();
  out.add_option("-o,--output", o.output, "folder to write")->required();
  out.add_option("--dtype", o.dtype, "of the weights: fp32 or bf16")->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
  out.add_option("--tokenizer", o.tokenizer, "tokenizer file or folder (default: the run's own)");
  out.add_option("--shard-gb", o.shard_gb, "largest file, 10^9 bytes")->check(CLI::Range(0.000001, 1e6));
  out.add_flag("--adapters", o.adapters, "only the adapters of a run with model.lora_rank, in peft's form; else they are merged");
  out.add_option("--base", o.base, "with --adapters: where peft finds the frozen model");
  auto& in =
      flags.verb("checkpoint", "import-hf", "begin a run directory with the weights and the tokenizer of a Hugging Face folder", values);
  in.add_option("path", o.path, "folder with config.json and safetensors")->required();
  in.add_option("-o,--output", o.output, "run directory; its first checkpoint must not be there yet")->required();
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "data/export_tokenizer.h"
#include "layers/dtype.h"
#include "models/hugging_face.h"
#include "models/peft_folder.h"
#include "serve/load_model.h"
#include "train/checkpointing.h"
#include "train/config.h"

namespace ingot::cli {
namespace {

int export_model(const HuggingFaceOptions& o, bool json) {
  // fp32 holds the masters exactly; the file's dtype is chosen on the way out.
  auto loaded = serve::load_model(o.path, o.dtype == "fp64" ? at::kDouble : at::kFloat, at::kCPU);
  if (!o.tokenizer.empty()) loaded.tokenizer = data::load_tokenizer(o.tokenizer), loaded.files.clear();
  const auto dtype = o.dtype == "bf16" ? tensor::DType::bf16 : layers::from_torch(layers::precision_named(o.dtype).dtype);
  if (o.adapters)
    models::save_adapters(
        *loaded.model, o.output, dtype, [](const layers::Parameter& p) { return p.value; }, o.base);
  else
    models::save_hugging_face(
        *loaded.model, o.output, dtype, [](const layers::Parameter& p) { return p.value; }, static_cast<int64_t>(o.shard_gb * 1e9));
  // Of an archive they have no folder yet.
  for (const auto& [name, content] : loaded.files) base::write_file_atomically(std::filesystem::path(o.output) / name, content);
  if (loaded.tokenizer && !loaded.files.empty()) loaded.tokenizer = data::load_tokenizer(o.output);
  if (loaded.tokenizer) data::export_tokenizer(*loaded.tokenizer, o.output);
  else base::log_warning("no tokenizer was found for {}: the folder has none; give one with --tokenizer", o.path);
  if (json)
    std::printf("%s\n",
                nlohmann::json{{"folder", o.output}, {"dtype", o.dtype}, {"parameters", loaded.model->parameters().weight_elements()}}
                    .dump(2)
                    .c_str());
  else base::log_info("wrote {}", o.output);
  return 0;
}

int import_model(const HuggingFaceOptions& o, bool json) {
  namespace fs = std::filesystem;
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
  const auto parameters = loaded.model->parameters().weight_elements();
  if (json) {
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

}  // namespace

int run_hugging_face(const Call& call) {
  const auto& o = call.options<HuggingFaceOptions>();
  return call.action == "export-hf" ? export_model(o, call.json) : import_model(o, call.json);
}

}  // namespace ingot::cli
#endif
