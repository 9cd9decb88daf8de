// Adapters as the peft library keeps them: adapter_config.json and adapter_model.safetensors, in a folder of their own or, as transformers
// reads them too, beside the weights of the model that they belong to.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "models/model.h"

namespace ingot::models {

bool has_adapters(const std::filesystem::path& folder);

/// Sets model.lora_… as folder/adapter_config.json has it. Throws ModelError for what is no plain LoRA.
void read_adapter_config(const std::filesystem::path& folder, ModelConfig& config);

/// The name of an adapter's matrix there. Throws ModelError where the family's folders keep the weight beside it in another shape.
std::string peft_name(const ModelConfig& config, const layers::Parameter& adapter);

/// Fills the adapters of an allocated model. All must be there, and nothing else; ModelError lists the problems.
void load_adapters(Model& model, const std::filesystem::path& folder);

/// Writes both files into `folder`. `base`: where the frozen model is to be found, for peft; may be empty.
void save_adapters(const Model& model, const std::filesystem::path& folder, tensor::DType dtype,
                   const std::function<at::Tensor(const layers::Parameter&)>& value_of, const std::string& base);

}  // namespace ingot::models
