// How a model's parameters lie in a Hugging Face folder: most as one tensor of their own name, stacks of experts in some families as one
// tensor for each expert's matrix.
#pragma once

#include <string>
#include <vector>

#include "device/aten.h"
#include "layers/parameter.h"

namespace ingot::models {

struct Family;

/// A tensor of the folder.
struct StoredTensor {
  std::string name;
  tensor::Shape shape;
  tensor::Box box;           // of the whole parameter, which it holds
  bool is_optional = false;  // transformers has no such tensor: absent = zeros, and written only where it is not
};

std::vector<StoredTensor> stored_tensors(const Family& family, const layers::Parameter& parameter);
/// What of a whole parameter, or of its gradient, a stored tensor holds.
at::Tensor stored_part(const at::Tensor& whole, const StoredTensor& stored);

/// For Family::stored. The parameter whole, under its own name.
std::vector<StoredTensor> stored_whole(const layers::Parameter& parameter);
/// OLMoE's and Qwen3-MoE's form: each expert's matrices apart, and no balancing biases.
std::vector<StoredTensor> stored_by_expert(const layers::Parameter& parameter);
/// Mixtral's: the same under other names.
std::vector<StoredTensor> stored_as_mixtral(const layers::Parameter& parameter);

}  // namespace ingot::models
