// LoRA (arXiv 2106.09685; model.lora_rank): the model is frozen, and matrices of its blocks get low-rank adapters, which alone are trained.
// They lie beside the matrix, under peft's names: <module>.lora_A.weight [rank, in] and <module>.lora_B.weight [out, rank].
//
// Adapters are whole on every rank: a tensor or tensor_sequence axis is refused. So are adapters of experts, routers, embedding and head.
#pragma once

#include <functional>
#include <string>

#include "layers/parameter.h"
#include "models/config.h"
#include "parallel/layout.h"

namespace ingot::models {

/// Freezes what is declared and adds the adapters, where the model has any. Throws ConfigError.
void declare_adapters(const ModelConfig& config, const parallel::Layout& layout, layers::ParameterList& parameters);

/// Whether a name is that of an adapter's matrix.
bool is_adapter(const std::string& name);

/// What the layer computes with, weight + scale * up down, in the dtype of the weight. Values come from `value_of`; of a parameter without
/// an adapter its own.
at::Tensor merged(const layers::Parameter& weight, const std::function<at::Tensor(const layers::Parameter&)>& value_of);

}  // namespace ingot::models
