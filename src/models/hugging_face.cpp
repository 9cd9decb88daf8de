#include "models/hugging_face.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/safetensors/safetensors.h"
#include "layers/dtype.h"
#include "models/adapters.h"
#include "models/hugging_face_config.h"
#include "models/peft_folder.h"
#include "models/stored_tensors.h"
#include "models/zaya_folder.h"

namespace ingot::models {
namespace {

namespace fs = std::filesystem;
using base::ModelError;
using layers::Parameter;
using nlohmann::json;

// A tied head may or may not be stored; when it is, it must simply be ignored.
bool is_tied_copy(const Model& model, const std::string& name) { return name == "lm_head.weight" && model.config().tie_embeddings; }

// ZAYA1's folders have one of two forms.
bool is_staged(const ModelConfig& config, const checkpoint::SafetensorsReader& reader) {
  return config.family == "zaya1" && reader.contains(kStagedZayaMark);
}

std::vector<StoredPiece> pieces_in(const checkpoint::SafetensorsReader& reader, const ModelConfig& config, const Parameter& p) {
  return is_staged(config, reader) ? stored_staged_zaya(config, p) : stored_pieces(config, p);
}

void check_tensors(const Model& model, const checkpoint::SafetensorsReader& reader, const fs::path& folder) {
  std::vector<std::string> problems;
  std::set<std::string> known;
  const auto check = [&](const StoredPiece& stored) {
    if (!known.insert(stored.name).second) return;
    if (!reader.contains(stored.name)) {
      if (!stored.is_optional) problems.push_back(fmt::format("{} is missing", stored.name));
    } else if (const auto& shape = reader.tensor(stored.name).shape; shape != stored.shape) {
      problems.push_back(
          fmt::format("{} has shape {}, the config asks for {}", stored.name, tensor::to_string(shape), tensor::to_string(stored.shape)));
    }
  };
  for (const auto& p : model.parameters().all())
    if (!is_adapter(p->name))
      for (const auto& piece : pieces_in(reader, model.config(), *p)) check(piece);
  for (const auto& stored : reader.tensors()) {
    const auto is_ignored = family_named(model.config().family).is_ignored;
    if (is_ignored && is_ignored(model.config(), stored.name)) continue;
    if (is_staged(model.config(), reader) && is_state_of_staged_zaya(stored.name)) continue;
    if (!known.contains(stored.name) && !is_tied_copy(model, stored.name))
      problems.push_back(fmt::format("{} is not part of a {} model", stored.name, model.config().family));
  }
  if (problems.empty()) return;
  const size_t shown = std::min<size_t>(problems.size(), 10);
  throw ModelError("the weights in {} do not fit its config.json ({} problems):\n  {}{}", folder.string(), problems.size(),
                   fmt::join(problems.begin(), problems.begin() + static_cast<int64_t>(shown), "\n  "),
                   shown < problems.size() ? "\n  …" : "");
}

// The whole parameter, in the file's dtype; undefined where the folder has nothing of it.
at::Tensor read_parameter(const ModelConfig& config, const Parameter& p, const checkpoint::SafetensorsReader& reader) {
  const auto pieces = pieces_in(reader, config, p);
  at::Tensor whole;
  for (const auto& piece : pieces) {
    if (!reader.contains(piece.name)) return {};
    const auto stored = layers::tensor_from_bytes(reader.bytes(piece.name), reader.tensor(piece.name).dtype, piece.shape);
    const auto place = place_in(stored, piece);
    if (pieces.size() == 1 && !piece.part) return place.reshape(p.shape);
    if (!whole.defined()) whole = at::empty(p.shape, stored.options());
    part_of(whole, piece).copy_(place);
  }
  return whole;
}

// transformers leaves predictors out when it saves a folder, whatever config.json says: the weights are asked.
int64_t count_predictors(ModelConfig config, const fs::path& folder) {
  if (!family_named(config.family).is_ignored) return 0;
  std::error_code none;
  if (!fs::exists(folder / "model.safetensors", none) && !fs::exists(folder / "model.safetensors.index.json", none)) return 0;
  const checkpoint::SafetensorsReader reader(folder);
  for (config.mtp_layers = 0;; ++config.mtp_layers) {
    Parameter first;
    first.name = fmt::format("model.layers.{}.enorm.weight", config.layers + config.mtp_layers);
    first.shape = {config.hidden};
    auto more = config;
    ++more.mtp_layers;
    if (!reader.contains(stored_pieces(more, first).front().name)) return config.mtp_layers;
  }
}

ModelConfig read_config_json(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  const json document = read_json_file(path);
  const auto type = HuggingFaceFields(document).text("model_type", "");
  std::vector<std::string> known;
  for (const auto& family : families()) {
    std::vector<std::string> types = {family.hugging_face_type};
    types.insert(types.end(), family.further_types.begin(), family.further_types.end());
    if (std::find(types.begin(), types.end(), type) != types.end()) {
      try {
        return family.from_hugging_face(document);
      } catch (const ModelError& wrong) {
        throw ModelError("{}: {}", folder.string(), wrong.what());
      }
    }
    known.insert(known.end(), types.begin(), types.end());
  }
  throw ModelError("{}: model_type '{}' is not supported; {} are{}", path.string(), type, base::join(known, " and "),
                   base::did_you_mean(type, known));
}

}  // namespace

ModelConfig read_hugging_face_config(const fs::path& folder) {
  auto config = read_config_json(folder);
  config.mtp_layers = count_predictors(config, folder);
  if (has_adapters(folder)) read_adapter_config(folder, config);
  return config;
}

void load_hugging_face_weights(Model& model, const fs::path& folder) {
  const at::NoGradGuard no_grad;
  const checkpoint::SafetensorsReader reader(folder);
  check_tensors(model, reader, folder);
  if (model.config().lora_rank > 0) load_adapters(model, folder);
  for (const auto& p : model.parameters().all()) {
    if (is_adapter(p->name)) continue;
    const auto whole = read_parameter(model.config(), *p, reader);
    whole.defined() ? p->value.copy_(layers::part_of(whole, p->part)) : p->value.zero_();
  }
}

std::unique_ptr<Model> load_hugging_face_model(const fs::path& folder, at::ScalarType dtype, at::Device device,
                                               const parallel::Layout& layout) {
  auto model = create_model(read_hugging_face_config(folder), layout);
  model->allocate(dtype, device);
  load_hugging_face_weights(*model, folder);
  return model;
}

void save_hugging_face(const Model& model, const fs::path& folder, tensor::DType dtype, const ValueOf& value_of,
                       int64_t shard_limit_bytes) {
  const auto& config = model.config();
  if (!config.mixers.empty() || !config.feed_forwards.empty())
    throw ModelError("model.{} puts other parts into a {} model: it has no Hugging Face form",
                     config.mixers.empty() ? "feed_forwards" : "mixers", config.family);
  json document = family_named(config.family).to_hugging_face(config);
  document["dtype"] = document["torch_dtype"] = dtype == tensor::DType::bf16   ? "bfloat16"
                                                : dtype == tensor::DType::fp64 ? "float64"
                                                                               : "float32";
  base::make_directories(folder);
  base::write_file_atomically(folder / "config.json", document.dump(2) + "\n");
  json generation = {{"_from_model_config", true}};
  for (const char* id : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (!document[id].is_null()) generation[id] = document[id];
  }
  base::write_file_atomically(folder / "generation_config.json", generation.dump(2) + "\n");

  const auto merged_value = [&](const Parameter& p) { return merged(p, value_of); };
  auto converted = std::make_shared<at::Tensor>();  // of the tensor being written
  std::vector<checkpoint::SafetensorsItem> items;
  int64_t unknown = 0;
  for (auto& stored : stored_tensors(model)) {
    if (stored.is_optional()) {
      if (!stored.assemble(merged_value).any().item<bool>()) continue;
      ++unknown;
    }
    const auto own = stored.sources[0].parameter->kind == Parameter::Kind::buffer ? tensor::DType::fp32 : dtype;
    items.push_back({{stored.name, own, stored.shape}, [stored, own, converted, &merged_value] {
                       *converted = stored.assemble(merged_value).detach().to(at::kCPU).to(layers::to_torch(own)).contiguous();
                       return layers::bytes_of(*converted);
                     }});
  }
  if (unknown > 0)
    base::log_warning(
        "{}: the routers of {} layers have balancing biases, which transformers does not know: it chooses experts without them",
        folder.string(), unknown);
  checkpoint::write_safetensors_folder(folder, items, shard_limit_bytes);
}

}  // namespace ingot::models
