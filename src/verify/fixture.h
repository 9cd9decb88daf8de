// A reference file: a safetensors file with tensors and a JSON note in its metadata.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "checkpoint/safetensors/safetensors.h"
#include "device/aten.h"

namespace ingot::verify {

class Fixture {
 public:
  explicit Fixture(const std::filesystem::path& path) : path_(path), reader_(path) {}

  bool has(const std::string& name) const { return reader_.contains(name); }
  at::Tensor tensor(const std::string& name) const;
  /// The JSON document stored under `key` of the metadata; ModelError when missing or broken.
  nlohmann::json note(const std::string& key) const;
  std::string text(const std::string& key) const;
  std::vector<std::string> names() const;

 private:
  std::filesystem::path path_;
  checkpoint::SafetensorsReader reader_;
};

}  // namespace ingot::verify
