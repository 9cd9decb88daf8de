// The `normalizer` of a tokenizer.json: text to text, before anything is cut.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "data/hugging_face/regex.h"

namespace ingot::data {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// `text` is valid UTF-8.
  virtual std::string apply(std::string text) const = 0;
};

/// The text with every match of `pattern` replaced by `with`, taken as it is. Throws DataError when it grows out of all proportion.
std::string replace_all(const Regex& pattern, std::string_view text, const std::string& with);

/// From the JSON of a normalizer; null gives one that changes nothing. Throws DataError naming a kind that is not supported.
std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& json);

}  // namespace ingot::data
