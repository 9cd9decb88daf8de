#include "models/peft_folder.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "checkpoint/safetensors/safetensors.h"
#include "layers/dtype.h"
#include "models/adapters.h"
#include "models/hugging_face_config.h"
#include "models/stored_tensors.h"

namespace ingot::models {
namespace {

namespace fs = std::filesystem;
using base::ModelError;
using layers::Parameter;
using nlohmann::json;

constexpr const char *kConfig = "adapter_config.json", *kWeights = "adapter_model.safetensors", *kPrefix = "base_model.model.";

// Members that change what an adapter computes, and the values under which they do not.
void refuse_other_kinds(const json& config, const std::string& origin) {
  const auto refuse = [&](const char* name, const std::vector<json>& harmless) {
    if (!config.contains(name)) return;
    if (std::find(harmless.begin(), harmless.end(), config[name]) == harmless.end())
      throw ModelError("{}: {} = {} is not supported; plain LoRA adapters are", origin, name, config[name].dump());
  };
  const std::vector<json> off = {nullptr, false}, none = {nullptr, json::object(), json::array()};
  refuse("peft_type", {"LORA"});
  refuse("bias", {"none"});
  for (const char* flag : {"use_dora", "fan_in_fan_out", "lora_bias", "use_qalora", "use_bdlora"}) refuse(flag, off);
  for (const char* list : {"rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform", "layers_pattern", "exclude_modules",
                           "target_parameters", "trainable_token_indices", "layer_replication"})
    refuse(list, none);
}

std::vector<std::string> targets_in(const json& config, const std::string& origin) {
  const auto targets = config.value("target_modules", json());
  if (targets == "all-linear") return {};
  if (!targets.is_array() || targets.empty())
    throw ModelError("{}: target_modules is to be a list of names or \"all-linear\"; it is {}", origin, targets.dump());
  std::set<std::string> names;
  for (const auto& target : targets) {
    if (!target.is_string()) throw ModelError("{}: target_modules has {}, which is no name", origin, target.dump());
    const auto name = target.get<std::string>();
    names.insert(name.substr(name.rfind('.') + 1));
  }
  return {names.begin(), names.end()};
}

std::vector<Parameter*> adapters_of(const Model& model) {
  std::vector<Parameter*> adapters;
  for (const auto& p : model.parameters().all())
    if (p->adapter) adapters.insert(adapters.end(), {p->adapter.down, p->adapter.up});
  return adapters;
}

}  // namespace

bool has_adapters(const fs::path& folder) {
  std::error_code none;
  return fs::exists(folder / kConfig, none);
}

void read_adapter_config(const fs::path& folder, ModelConfig& config) {
  const auto origin = (folder / kConfig).string();
  const auto document = read_json_file(folder / kConfig);
  refuse_other_kinds(document, origin);
  const auto rank = document.value("r", json()), alpha = document.value("lora_alpha", json());
  if (!rank.is_number_integer() || rank < 1 || rank > (int64_t{1} << 30) || !alpha.is_number() || alpha <= 0)
    throw ModelError("{}: r = {}, lora_alpha = {}: both are to be positive numbers", origin, rank.dump(), alpha.dump());
  config.lora_rank = rank.get<int64_t>();
  config.lora_alpha = alpha.get<double>();
  // What peft then adds is multiplied by alpha / sqrt(rank).
  if (document.value("use_rslora", json(false)) == true) config.lora_alpha *= std::sqrt(static_cast<double>(config.lora_rank));
  config.lora_targets = targets_in(document, origin);
}

std::string peft_name(const ModelConfig& config, const Parameter& adapter) {
  const auto module = adapter.name.substr(0, adapter.name.rfind(".lora_"));
  Parameter weight;
  weight.name = module + ".weight";
  weight.shape = {1, 1};
  const auto pieces = stored_pieces(config, weight);
  if (pieces.size() != 1 || pieces[0].part || pieces[0].place)
    throw ModelError("{}: {} folders keep this weight in another shape, for which peft has no such adapter; merge it into the model",
                     module, config.family);
  const auto& name = pieces[0].name;
  return kPrefix + name.substr(0, name.rfind('.')) + adapter.name.substr(module.size());
}

void load_adapters(Model& model, const fs::path& folder) {
  const at::NoGradGuard no_grad;
  const checkpoint::SafetensorsReader reader(folder / kWeights);
  std::vector<std::string> problems;
  std::set<std::string> known;
  for (const auto* p : adapters_of(model)) {
    const auto& name = *known.insert(peft_name(model.config(), *p)).first;
    if (!reader.contains(name)) problems.push_back(name + " is missing");
    else if (const auto& shape = reader.tensor(name).shape; shape != p->shape)
      problems.push_back(
          fmt::format("{} has shape {}, the config asks for {}", name, tensor::to_string(shape), tensor::to_string(p->shape)));
  }
  for (const auto& stored : reader.tensors())
    if (!known.contains(stored.name))
      problems.push_back(fmt::format("{} is not an adapter of this {} model", stored.name, model.config().family));
  if (!problems.empty())
    throw ModelError(
        "{} does not fit the model and {} ({} problems):\n  {}", (folder / kWeights).string(), kConfig, problems.size(),
        base::join({problems.begin(), problems.begin() + static_cast<int64_t>(std::min<size_t>(10, problems.size()))}, "\n  "));
  for (auto* p : adapters_of(model)) {
    const auto name = peft_name(model.config(), *p);
    p->value.copy_(layers::tensor_from_bytes(reader.bytes(name), reader.tensor(name).dtype, p->shape));
  }
}

void save_adapters(const Model& model, const fs::path& folder, tensor::DType dtype,
                   const std::function<at::Tensor(const Parameter&)>& value_of, const std::string& base) {
  const auto& config = model.config();
  if (config.lora_rank == 0) throw ModelError("the model has no adapters (model.lora_rank = 0)");
  if (!config.mixers.empty() || !config.feed_forwards.empty())
    throw ModelError("model.{} puts other parts into a {} model: peft has none to put adapters into",
                     config.mixers.empty() ? "feed_forwards" : "mixers", config.family);
  std::set<std::string> targets;
  std::vector<checkpoint::SafetensorsItem> items;
  auto converted = std::make_shared<at::Tensor>();  // of the tensor being written
  for (const auto* p : adapters_of(model)) {
    const auto name = peft_name(config, *p);
    const auto module = name.substr(0, name.rfind(".lora_"));
    targets.insert(module.substr(module.rfind('.') + 1));
    items.push_back({{name, dtype, p->shape}, [p, dtype, converted, &value_of] {
                       *converted = value_of(*p).detach().to(at::kCPU).to(layers::to_torch(dtype)).contiguous();
                       return layers::bytes_of(*converted);
                     }});
  }
  const json document = {{"peft_type", "LORA"},
                         {"task_type", "CAUSAL_LM"},
                         {"base_model_name_or_path", base.empty() ? json() : json(base)},
                         {"r", config.lora_rank},
                         {"lora_alpha", config.lora_alpha},
                         {"lora_dropout", 0.0},
                         {"target_modules", targets},
                         {"bias", "none"},
                         {"fan_in_fan_out", false},
                         {"use_rslora", false},
                         {"inference_mode", true}};
  base::make_directories(folder);
  base::write_file_atomically(folder / kConfig, document.dump(2) + "\n");
  checkpoint::write_safetensors(folder / kWeights, items);
}

}  // namespace ingot::models
