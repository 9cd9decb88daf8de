// Reading and writing Hugging Face's config.json: typed access with errors that name the field, and what all families share.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "layers/sequences.h"
#include "models/config.h"

namespace ingot::models {

/// A view of a config.json; the document must outlive it.
class HuggingFaceFields {
 public:
  explicit HuggingFaceFields(const nlohmann::json& json) : json_(json) {}

  static std::string origin() { return "config.json"; }
  bool has(const std::string& name) const;
  int64_t integer(const std::string& name) const;  // throws ModelError when missing or of another type
  int64_t integer(const std::string& name, int64_t otherwise) const;
  double number(const std::string& name) const;
  double number(const std::string& name, double otherwise) const;
  bool boolean(const std::string& name, bool otherwise) const;
  std::string text(const std::string& name, const std::string& otherwise) const;
  /// ModelError when the field is present and not `expected` / is true: the feature does not exist here.
  void refuse_unless(const std::string& name, const std::string& expected) const;
  void refuse_if_true(const std::string& name) const;

  /// Sizes, norms, ties and special ids, which all families name alike.
  ModelConfig common() const;
  /// Translates `layer_types` and reads `sliding_window`.
  void read_layer_types(ModelConfig& config, const std::map<std::string, std::string>& names) const;
  /// `sliding_window` where all layers have it or none. RoPE must have been read.
  void read_window_of_all_layers(ModelConfig& config) const;
  /// The rope_parameters object (of one kind of layer), whichever of the old and new spellings the file uses; null if none.
  nlohmann::json rope(const std::string& kind = "") const;
  void read_rope(ModelConfig& config, const nlohmann::json& rope) const;
  void read_longrope(ModelConfig& config, const nlohmann::json& rope) const;

 private:
  const nlohmann::json& json_;
};

/// A JSON file of a folder, of 16 MiB at most. Throws ModelError when it is no JSON object, or FileError.
nlohmann::json read_json_file(const std::filesystem::path& path);

/// By how much YaRN makes attention sharper for a context stretched by `factor` (arXiv 2309.00071, section 3.4).
double yarn_scale(double factor, double mscale);

nlohmann::json common_hugging_face_config(const ModelConfig& config);
/// ConfigError where sliding layers have another RoPE base, for families with one. Returns whether any layer slides.
bool slides_with_one_rope_base(const ModelConfig& config);
/// One name for each layer, the way back of read_layer_types.
nlohmann::json hugging_face_layer_types(const ModelConfig& config, const char* full, const char* sliding);
/// `sliding_window` of a model whose layers all have it, which then is one of full layers; else null.
nlohmann::json take_window_of_all_layers(ModelConfig& config);
nlohmann::json hugging_face_rope(const ModelConfig& config, double base);
layers::RotarySettings rotary_settings(const ModelConfig& config, int64_t layer);

}  // namespace ingot::models
