// The `pre_tokenizer` of a tokenizer.json: cuts normalised text into the pieces that the model encodes one by one.
#pragma once

#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/hugging_face/regex.h"

namespace ingot::data {

/// Texts that stay where they are while more come.
using TextStore = std::deque<std::string>;

struct Segment {
  std::string_view text;  // of what was given, or of a text in the store
  bool at_start = false;  // begins where the whole text begins: some kinds put a space only there
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// `made` takes the texts that are not in what was given, and must outlive the segments.
  virtual void apply(std::vector<Segment>& segments, TextStore& made) const = 0;
};

/// From the JSON of a pre-tokenizer; null gives one that cuts nothing. `keep_bytes`: ByteLevel leaves out the step from bytes to its
/// alphabet. Throws DataError naming a kind that is not supported.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const nlohmann::json& json, bool keep_bytes = false);

/// One that makes every match of `pattern` a piece; what lies between is dropped.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const Regex& pattern);

/// Whether its last step, and no other, is ByteLevel: a model that takes bytes can then do without the alphabet.
bool ends_in_byte_level(const nlohmann::json& json);

}  // namespace ingot::data
