// The `pre_tokenizer` of a tokenizer.json: cuts normalised text into the pieces that the model encodes one by one.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ingot::data {

struct Segment {
  std::string text;
  bool at_start = false;  // begins where the whole text begins: some kinds put a space only there
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(std::vector<Segment>& segments) const = 0;
};

/// From the JSON of a pre-tokenizer; null gives one that cuts nothing. Throws DataError naming a kind that is not supported.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const nlohmann::json& json);

}  // namespace ingot::data
