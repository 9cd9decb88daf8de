// Hugging Face model folders: config.json, generation_config.json and safetensors weights, read and written natively.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "models/model.h"

namespace ingot::models {

/// The shape described by folder/config.json, with the predictors of further tokens that the folder has weights of, and adapters where
/// peft's files lie beside it. Throws ModelError or FileError.
ModelConfig read_hugging_face_config(const std::filesystem::path& folder);

/// Fills the parameters of an allocated model, or of a part of it, from the folder's safetensors. Every parameter must be there with its
/// shape, and nothing unknown beside it; all problems are listed in one ModelError before anything is overwritten. `skip_bias` of ZAYA1 is
/// taken from the file as it is (transformers overwrites it on load; the file is the truth).
void load_hugging_face_weights(Model& model, const std::filesystem::path& folder);

/// Model of the folder, or this rank's part of it, allocated and filled.
std::unique_ptr<Model> load_hugging_face_model(const std::filesystem::path& folder, at::ScalarType dtype, at::Device device,
                                               const parallel::Layout& layout = {});

/// Writes the model with its adapters merged into it: config.json, generation_config.json and the weights (`dtype`: fp32 or bf16; vectors
/// that keep fp32 and the balancing biases follow transformers: all of `dtype` but the biases, which stay fp32). Values come from
/// `value_of`, so that a trainer can give its fp32 masters. The weights appear last.
using ValueOf = std::function<at::Tensor(const layers::Parameter&)>;
void save_hugging_face(const Model& model, const std::filesystem::path& folder, tensor::DType dtype, const ValueOf& value_of,
                       int64_t shard_limit_bytes = 5'000'000'000);

}  // namespace ingot::models
