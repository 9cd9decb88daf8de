// A model's parameters as the tensors that llama.cpp reads.
#pragma once

#include "gguf/architecture.h"
#include "gguf/file.h"
#include "models/model.h"

namespace ingot::gguf {

/// Matrices come as `matrices`, or in bf16 where their rows are no multiples of q8_0's block; vectors, biases and the router in fp32.
/// Adapters are merged. The tensors read the model when they are written, which it must live to see. Throws ModelError for a parameter that
/// llama.cpp has no place for.
std::vector<Tensor> tensors_of(const models::Model& model, const Architecture& architecture, Type matrices);

}  // namespace ingot::gguf
