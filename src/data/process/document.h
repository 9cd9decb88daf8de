// A document on its way through the steps of a recipe, and what a step did to it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::data::process {

struct Document {
  std::string text;                  // valid UTF-8
  nlohmann::ordered_json members{};  // of the JSON line that it came in, its text left out; null of plain text
  int32_t source = 0;                // of the recipe's sources
};

/// What a step did to the documents of one block, and the beginnings of some that it removed; added up block by block in the order of the
/// documents.
struct Tally {
  struct Removed {
    int64_t documents = 0, bytes = 0;
    std::vector<std::string> examples;  // the first ones, shortened
  };
  int64_t documents = 0, bytes = 0;  // that came
  int64_t kept_documents = 0, kept_bytes = 0;
  std::map<std::string, Removed> removed;  // by the reason
  std::map<std::string, int64_t> counts;   // of what was changed: "lines removed"

  /// Counts `document` as removed; `remark` goes with its example.
  void remove(const Document& document, const std::string& reason, const std::string& remark = "");
  void count(const std::string& what, int64_t times) {
    if (times > 0) counts[what] += times;
  }
  void add(const Tally& later);

  static constexpr size_t kExamples = 3;
};

}  // namespace ingot::data::process
