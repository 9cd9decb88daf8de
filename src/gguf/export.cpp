#include "gguf/export.h"

#include "base/error.h"
#include "base/log.h"
#include "gguf/architecture.h"
#include "gguf/tensors.h"
#include "gguf/vocabulary.h"

namespace ingot::gguf {
namespace {

// "general.file_type": of which type most of the file is.
uint32_t file_type(Type type) {
  switch (type) {
    case Type::fp32: return 0;
    case Type::fp16: return 1;
    case Type::q8_0: return 7;
    case Type::bf16: return 32;
  }
  return 0;
}

}  // namespace

Type type_named(const std::string& dtype) {
  if (dtype == "fp32") return Type::fp32;
  if (dtype == "fp16") return Type::fp16;
  if (dtype == "bf16") return Type::bf16;
  if (dtype == "q8_0") return Type::q8_0;
  throw base::UsageError("--dtype {}: GGUF files are written in fp32, bf16, fp16 or q8_0", dtype);
}

void export_model(const models::Model& model, const data::Tokenizer* tokenizer, const std::filesystem::path& path, Type matrices) {
  const auto& config = model.config();
  const auto& architecture = architecture_of(config);
  const auto tensors = tensors_of(model, architecture, matrices);
  auto fields = shape_fields(config, architecture);
  fields.push_back({"general.file_type", file_type(matrices)});
  if (matrices == Type::q8_0) fields.push_back({"general.quantization_version", uint32_t{2}});
  std::vector<std::string> differences;
  const auto words = vocabulary_fields(tokenizer, config, differences);
  fields.insert(fields.end(), words.begin(), words.end());

  for (const auto& difference : differences)
    base::log_warning("{}: llama.cpp will cut some texts into other tokens: {}", tokenizer->path().string(), difference);
  if (const int64_t context = context_length(config, architecture); context < config.max_positions)
    base::log_warning("{}: llama.cpp's {} has no sliding windows, so that its context is one window, {} tokens", path.string(),
                      architecture.name, context);
  if (config.rope_scaling == "yarn" && !config.rope_truncate)
    base::log_warning("{}: llama.cpp rounds the border channels of YaRN outwards, this model (rope_truncate = false) does not",
                      path.string());
  if (config.mtp_layers > 0) base::log_warning("{}: the predictors of further tokens are left out", path.string());
  write_file(path, fields, tensors);
}

}  // namespace ingot::gguf
