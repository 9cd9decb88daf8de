// Reading the components of a tokenizer.json: kinds, patterns and nesting.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "data/hugging_face/regex.h"

namespace ingot::data {

/// The "type" of a component, "" for null.
inline std::string kind_of(const nlohmann::json& json) { return json.is_null() ? "" : json.at("type").get<std::string>(); }

/// {"String": "…"} or {"Regex": "…"}.
inline Regex pattern_of(const nlohmann::json& json) {
  const auto& pattern = json.at("pattern");
  if (pattern.contains("String")) return Regex::literal(pattern.at("String").get<std::string>());
  return Regex(pattern.at("Regex").get<std::string>());
}

/// An optional field, which may be null.
template <class T>
T field_or(const nlohmann::json& json, const char* name, T otherwise) {
  const auto found = json.find(name);
  return found == json.end() || found->is_null() ? otherwise : found->get<T>();
}

/// Sequences inside sequences are refused beyond any depth that a real file has: the reader is recursive.
inline void check_depth(int depth) {
  if (depth > 16) throw base::DataError("its components are nested more than 16 deep");
}

[[noreturn]] inline void refuse_kind(const std::string& what, const std::string& kind) {
  throw base::DataError("its {} '{}' is not supported", what, kind);
}

}  // namespace ingot::data
