// How a model's parameters lie in a Hugging Face folder: most as one tensor of their own name; stacks of experts in some families as one
// tensor for each expert's matrix, and what some families keep in one matrix as parts of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/aten.h"
#include "layers/parameter.h"

namespace ingot::models {

class Model;
struct ModelConfig;

/// Where a part of a parameter lies in a tensor of the folder: two views of the same sizes.
struct StoredPiece {
  using View = std::function<at::Tensor(const at::Tensor&)>;

  std::string name;  // of the folder's tensor
  tensor::Shape shape;
  View part{};               // of the whole parameter, or of its gradient; empty: all of it, in the tensor's shape
  View place{};              // of the folder's tensor; empty: all of it
  bool is_optional = false;  // transformers has no such tensor: absent = zeros, and written only where it is not
};

/// For Family::stored. The parameter whole, under its own name.
std::vector<StoredPiece> stored_whole(const layers::Parameter& parameter);
/// Each expert's gate, up and down apart, as OLMoE, Qwen3-MoE and DeepSeek-V3 have them.
std::vector<StoredPiece> stored_by_expert(const ModelConfig& config, const layers::Parameter& parameter);
/// The same under Mixtral's names.
std::vector<StoredPiece> stored_as_mixtral(const ModelConfig& config, const layers::Parameter& parameter);

/// How a parameter of this model lies in folders of its family.
std::vector<StoredPiece> stored_pieces(const ModelConfig& config, const layers::Parameter& parameter);
/// `stored` -> the parameter's part of it, or a whole parameter -> what `piece` takes of it, in the sizes of the place.
at::Tensor place_in(const at::Tensor& stored, const StoredPiece& piece);
at::Tensor part_of(const at::Tensor& whole, const StoredPiece& piece);

/// A tensor of the folder, and what it is made of.
struct StoredTensor {
  struct Source {
    const layers::Parameter* parameter;
    StoredPiece piece;
  };
  std::string name;
  tensor::Shape shape;
  std::vector<Source> sources;

  bool is_optional() const { return sources.front().piece.is_optional; }
  /// `value_of`: a whole parameter, or its gradient.
  at::Tensor assemble(const std::function<at::Tensor(const layers::Parameter&)>& value_of) const;
};
/// All of a model but adapters (peft_folder.h), in the order of its parameters.
std::vector<StoredTensor> stored_tensors(const Model& model);

}  // namespace ingot::models
