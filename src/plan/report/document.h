// What a plan's command says, for programs and for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ingot::plan {

struct Document {
  nlohmann::ordered_json json;
  std::string text;
  bool fits = true;  // what was planned fits into memory
};

}  // namespace ingot::plan
