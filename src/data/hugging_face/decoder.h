// The `decoder` of a tokenizer.json: tokens back to text.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ingot::data {

class Decoder {
 public:
  virtual ~Decoder() = default;
  /// Changes tokens on their way to text; what is left at the end is joined.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

/// From the JSON of a decoder; null gives one that puts spaces between tokens. Throws DataError naming a kind that is not
/// supported.
std::unique_ptr<Decoder> make_decoder(const nlohmann::json& json);

}  // namespace ingot::data
