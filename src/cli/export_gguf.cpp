// `ingot checkpoint export-gguf`: a model as a file of llama.cpp.
#include "cli/verb.h"

namespace ingot::cli {

struct ExportGgufOptions {
  std::string path, output, tokenizer, dtype = "bf16";
  bool no_tokenizer = false;
};

#ifndef INGOT_COMPUTES
void add_export_gguf(Flags& flags) {
  const auto values = std::make_shared<ExportGgufOptions>();
  auto& o = *values;
  auto& verb = flags.verb("checkpoint", "export-gguf", "write a GGUF file, which llama.cpp runs", values);
  verb.add_option("path", o.path, "checkpoint, run directory or Hugging Face folder")->required();
  verb.add_option("-o,--output", o.output, "file to write")->required();
  verb.add_option("--dtype", o.dtype, "of the matrices: fp32, bf16, fp16 or q8_0")->check(CLI::IsMember({"fp32", "bf16", "fp16", "q8_0"}));
  auto* tokenizer = verb.add_option("--tokenizer", o.tokenizer, "tokenizer file or folder (default: the model's own)");
  verb.add_flag("--no-tokenizer", o.no_tokenizer, "a file that takes token ids alone")->excludes(tokenizer);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "gguf/export.h"
#include "serve/load_model.h"

namespace ingot::cli {

int run_export_gguf(const Call& call) {
  const auto& o = call.options<ExportGgufOptions>();
  // fp32 holds the masters exactly; the file's dtype is chosen on the way out.
  auto loaded = serve::load_model(o.path, at::kFloat, at::kCPU);
  if (!o.tokenizer.empty()) loaded.tokenizer = data::load_tokenizer(o.tokenizer);
  if (!o.tokenizer.empty()) loaded.files.clear();
  if (o.no_tokenizer) loaded.tokenizer.reset();
  else if (!loaded.files.empty())
    throw base::UsageError("{} is an archive: make a folder of it first (ingot checkpoint export-hf), or leave the tokenizer out", o.path);
  else if (!loaded.tokenizer)
    base::log_warning("no tokenizer was found for {}: the file will take token ids alone; give one with --tokenizer", o.path);
  gguf::export_model(*loaded.model, loaded.tokenizer.get(), o.output, gguf::type_named(o.dtype));
  if (call.json)
    std::printf("%s\n", nlohmann::json{{"file", o.output},
                                       {"dtype", o.dtype},
                                       {"bytes", std::filesystem::file_size(o.output)},
                                       {"parameters", loaded.model->parameters().weight_elements()}}
                            .dump(2)
                            .c_str());
  else base::log_info("wrote {}", o.output);
  return 0;
}

}  // namespace ingot::cli
#endif
