// `ingot checkpoint export-archive`: a model as one file that serving maps.
#include "cli/verb.h"

namespace ingot::cli {

struct ExportArchiveOptions {
  std::string path, output, tokenizer, dtype = "bf16";
  bool no_tokenizer = false;
};

#ifndef INGOT_COMPUTES
void add_export_archive(Flags& flags) {
  const auto values = std::make_shared<ExportArchiveOptions>();
  auto& o = *values;
  auto& verb = flags.verb("checkpoint", "export-archive", "write one file that ingot serve maps in place of reading", values);
  verb.add_option("path", o.path, "checkpoint, run directory or Hugging Face folder")->required();
  verb.add_option("-o,--output", o.output, "file to write, usually called .safetensors")->required();
  verb.add_option("--dtype", o.dtype, "of the weights: fp32 or bf16")->check(CLI::IsMember({"fp32", "bf16"}));
  auto* tokenizer = verb.add_option("--tokenizer", o.tokenizer, "tokenizer file or folder (default: the model's own)");
  verb.add_flag("--no-tokenizer", o.no_tokenizer, "weights and settings alone")->excludes(tokenizer);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "layers/dtype.h"
#include "serve/archive.h"

namespace ingot::cli {

int run_export_archive(const Call& call) {
  const auto& o = call.options<ExportArchiveOptions>();
  if (std::filesystem::is_regular_file(o.path))
    throw base::UsageError("{} is a file: an archive is made of the checkpoint, run or folder that it came from", o.path);
  // fp32 holds the masters exactly; the file's dtype is chosen on the way out.
  auto loaded = serve::load_model(o.path, at::kFloat, at::kCPU);
  if (!o.tokenizer.empty()) loaded.tokenizer = data::load_tokenizer(o.tokenizer);
  if (o.no_tokenizer) loaded.tokenizer.reset();
  else if (!loaded.tokenizer)
    base::log_warning("no tokenizer was found for {}: ingot serve will want one (--tokenizer); give it here, and it is in the file",
                      o.path);
  serve::export_archive(*loaded.model, loaded.tokenizer.get(), o.output, layers::precision_named(o.dtype).dtype);
  if (call.json)
    std::printf("%s\n", nlohmann::json{{"file", o.output},
                                       {"dtype", o.dtype},
                                       {"bytes", std::filesystem::file_size(o.output)},
                                       {"parameters", loaded.model->parameters().weight_elements()},
                                       {"tokenizer", loaded.tokenizer != nullptr}}
                            .dump(2)
                            .c_str());
  else base::log_info("wrote {}; ingot serve {} answers at once", o.output, o.output);
  return 0;
}

}  // namespace ingot::cli
#endif
