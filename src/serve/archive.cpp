#include "serve/archive.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <set>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/safetensors/archive.h"
#include "layers/dtype.h"
#include "models/adapters.h"

namespace ingot::serve {
namespace {

namespace fs = std::filesystem;
using base::ModelError;
using layers::Parameter;

constexpr const char *kSettings = "config.toml", *kDType = "dtype";

at::ScalarType dtype_in(at::ScalarType model, const Parameter& p) { return model == at::kBFloat16 && p.keeps_fp32 ? at::kFloat : model; }

// What serves of a model: itself without adapters and predictors.
models::ModelConfig served(models::ModelConfig config) {
  config.lora_rank = config.mtp_layers = 0;
  config.lora_targets.clear();
  return config;
}

std::string settings_text(models::ModelConfig config) {
  base::SettingsTable table;
  models::declare_settings(table, config);
  return table.dump_toml();
}

// Settings of a file: no more layers than it has tensors, since each is made before it is looked for.
models::ModelConfig settings_in(const checkpoint::SafetensorsReader& reader, const fs::path& path) {
  const auto text = reader.metadata().find(kSettings);
  if (text == reader.metadata().end()) throw ModelError("the archive {} has no {} among its metadata", path.string(), kSettings);
  models::ModelConfig config;
  base::SettingsTable table;
  models::declare_settings(table, config);
  table.load_toml(text->second, path.string());
  if (config != served(config)) throw ModelError("the archive {} is of a model with adapters or predictors, which none has", path.string());
  if (config.layers > static_cast<int64_t>(reader.tensors().size()))
    throw ModelError("the archive {} is of a model with {} layers, but has {} tensors", path.string(), config.layers,
                     reader.tensors().size());
  return config;
}

at::ScalarType dtype_in(const checkpoint::SafetensorsReader& reader, const fs::path& path) {
  const auto found = reader.metadata().find(kDType);
  const std::string name = found == reader.metadata().end() ? "" : found->second;
  if (name != "fp32" && name != "bf16")
    throw ModelError("the archive {} is of the dtype '{}'; fp32 and bf16 are read", path.string(), name);
  return layers::precision_named(name).dtype;
}

void check_tensors(const models::Model& model, at::ScalarType dtype, const checkpoint::SafetensorsReader& reader, const fs::path& path) {
  std::vector<std::string> problems;
  for (const auto& p : model.parameters().all()) {
    if (!reader.contains(p->name)) {
      problems.push_back(fmt::format("{} is missing", p->name));
      continue;
    }
    const auto& there = reader.tensor(p->name);
    const auto wanted = layers::from_torch(dtype_in(dtype, *p));
    if (there.shape != p->shape || there.dtype != wanted)
      problems.push_back(fmt::format("{} is {} {}, the settings ask for {} {}", p->name, tensor::name_of(there.dtype),
                                     tensor::to_string(there.shape), tensor::name_of(wanted), tensor::to_string(p->shape)));
  }
  for (const auto& there : reader.tensors())
    if (!checkpoint::is_of_archive(there.name) && !model.parameters().find(there.name))
      problems.push_back(fmt::format("{} is not part of a {} model", there.name, model.config().family));
  if (problems.empty()) return;
  const size_t shown = std::min<size_t>(problems.size(), 10);
  throw ModelError("the tensors of the archive {} do not fit its settings ({} problems):\n  {}{}", path.string(), problems.size(),
                   fmt::join(problems.begin(), problems.begin() + static_cast<int64_t>(shown), "\n  "),
                   shown < problems.size() ? "\n  …" : "");
}

// The whole parameter, in the mapping, which lives as long as the tensor.
at::Tensor mapped(const std::shared_ptr<checkpoint::SafetensorsReader>& reader, const Parameter& p, at::ScalarType dtype) {
  const auto bytes = reader->bytes(p.name);
  if (reinterpret_cast<uintptr_t>(bytes.data()) % checkpoint::kArchiveAlignment != 0)  // another program wrote the file anew
    return layers::tensor_from_bytes(bytes, layers::from_torch(dtype), p.shape);
  return at::from_blob(
      const_cast<std::byte*>(bytes.data()), p.shape, [reader](void*) {}, at::TensorOptions().dtype(dtype));
}

}  // namespace

void export_archive(const models::Model& model, const data::Tokenizer* tokenizer, const fs::path& path, at::ScalarType dtype) {
  if (dtype != at::kFloat && dtype != at::kBFloat16) throw base::UsageError("archives are written in fp32 or bf16");
  if (model.config().mtp_layers > 0) base::log_warning("{}: the predictors of further tokens are left out", path.string());
  const at::NoGradGuard no_grad;
  const auto shape = models::create_model(served(model.config()));
  const auto value_of = [](const Parameter& p) { return p.value; };
  auto converted = std::make_shared<at::Tensor>();  // of the tensor being written
  std::vector<checkpoint::SafetensorsItem> items;
  for (const auto& p : shape->parameters().all()) {
    const auto own = dtype_in(dtype, *p);
    items.push_back({{p->name, layers::from_torch(own), p->shape}, [&source = model.parameters().get(p->name), &value_of, own, converted] {
                       *converted = models::merged(source, value_of).detach().to(at::kCPU).to(own).contiguous();
                       return layers::bytes_of(*converted);
                     }});
  }
  checkpoint::write_archive(path, items, tokenizer ? data::files_of(*tokenizer) : data::TokenizerFiles(),
                            {{kSettings, settings_text(shape->config())}, {kDType, dtype == at::kFloat ? "fp32" : "bf16"}});
}

LoadedModel load_archive(const fs::path& path, std::optional<at::ScalarType> dtype, at::Device device, const parallel::Layout& layout) {
  const auto reader = std::make_shared<checkpoint::SafetensorsReader>(path);
  if (!checkpoint::is_archive(*reader))
    throw ModelError("{} has weights alone; give the folder that it is of, or what `ingot checkpoint export-archive` writes",
                     path.string());
  reader->allow_private_writes();
  const auto stored = dtype_in(*reader, path);
  LoadedModel loaded;
  try {
    loaded.model = models::create_model(settings_in(*reader, path), layout);
  } catch (const base::ConfigError& wrong) {
    throw ModelError("the archive {} has settings that no model can have: {}", path.string(), wrong.what());
  }
  check_tensors(*loaded.model, stored, *reader, path);
  loaded.model->take_values(dtype.value_or(stored), device, [&](const Parameter& p, at::ScalarType wanted) {
    const auto whole = mapped(reader, p, dtype_in(stored, p));
    return layers::part_of(whole, p.part).to(device, wanted).contiguous();
  });
  loaded.files = checkpoint::files_in(*reader);
  loaded.tokenizer = data::load_tokenizer(loaded.files, path);
  return loaded;
}

}  // namespace ingot::serve
