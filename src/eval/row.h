// The rows of a task's data, and what its templates make of them. Immutable once made.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/chat/syntax.h"

namespace ingot::eval {

struct Row {
  std::string where;  // "file:line", of Parquet "file: row N"
  nlohmann::ordered_json fields;
  data::chat::Dict variables;  // the same, for templates
};

/// JSON lines or Parquet, no more than `most` of them (0 = all). Throws DataError "file:line: …" for what is no JSON object, and for a file
/// without one.
std::vector<Row> read_rows(const std::filesystem::path& file, int64_t most = 0);

/// A field's name, or a Jinja template of all fields as lm-evaluation-harness has it: nothing is trimmed, and what is undefined is an
/// error.
class Template {
 public:
  /// `setting`: its name in errors. A text without {{ }} or {% %} is a field, unless it `may_be_constant`. Throws ConfigError for what is
  /// no template.
  Template(std::string source, std::string setting, bool may_be_constant = false);
  /// Both throw DataError, which names the row, and the fields that it has. `more`: further variables.
  std::string text(const Row& row, const data::chat::Dict& more = {}) const;
  /// The field itself if the template is one, else the text.
  nlohmann::ordered_json value(const Row& row) const;
  bool is_empty() const { return source_.empty(); }

 private:
  std::string source_, setting_;
  bool is_field_ = false;
  data::chat::Body body_;
};

}  // namespace ingot::eval
