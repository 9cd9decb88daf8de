// What llama.cpp calls a family of ours, which tensors it has a place for, and the values that it reads of a model's shape. Facts of
// llama.cpp as in llama-cpp-python 0.3.36.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "gguf/file.h"
#include "models/config.h"

namespace ingot::gguf {

struct Architecture {
  std::string family, name;                    // ours; llama.cpp's, with which its keys begin
  std::map<std::string, std::string> tensors;  // of a layer: our name -> its
  bool rotates_neighbours = false;             // RoPE turns channels 2i and 2i + 1; else i and i + head_dim / 2, as we do
  bool needs_head = false;                     // a tied embedding is written once more, as the head
  bool has_windows = false;                    // layers may slide
  bool has_llama3_rope = false, has_longrope = false;
  bool is_as_wide_as_heads = false;  // heads * head_dim is hidden
  bool fuses = false;                // q, k and v are one matrix, gate and up another
  bool adds_one_to_norms = false;    // our norm weights are those around 1
};

/// Throws ModelError for a family or a setting that llama.cpp does not know, or that is not written here, with the reason.
const Architecture& architecture_of(const models::ModelConfig& config);

/// The values of the model's shape, general.architecture first.
std::vector<Field> shape_fields(const models::ModelConfig& config, const Architecture& architecture);

/// Positions that llama.cpp may be given: the window's, where it knows no windows, since within one nothing is hidden.
int64_t context_length(const models::ModelConfig& config, const Architecture& architecture);

}  // namespace ingot::gguf
