#include "eval/row.h"

#include "base/error.h"
#include "base/text.h"
#include "data/chat/evaluate.h"
#include "data/text_reader.h"

namespace ingot::eval {

using base::DataError;

std::vector<Row> read_rows(const std::filesystem::path& file, int64_t most) {
  const data::TextOptions options{.format = data::TextFormat::jsonl, .whole_lines = true, .strict_utf8 = true};
  data::TextReader reader({file}, options);
  std::vector<Row> rows;
  const auto is_enough = [&] { return most > 0 && static_cast<int64_t>(rows.size()) >= most; };
  for (data::TextBlock block; !is_enough() && reader.next(block);)
    for (const auto& part : data::parse_block(block, options).parts) {
      if (is_enough()) break;
      auto where = block.where(part.line);
      auto fields = nlohmann::ordered_json::parse(part.text, nullptr, /*allow_exceptions=*/false);
      if (!fields.is_object()) throw DataError("{} is no JSON object; each line must be one, such as {{\"question\": …}}", where);
      Row row{.where = std::move(where), .fields = std::move(fields), .variables = {}};
      for (const auto& [name, value] : row.fields.items()) row.variables.emplace_back(name, data::chat::Value::from(value));
      rows.push_back(std::move(row));
    }
  if (rows.empty()) throw DataError("{} has no rows; give JSON lines or Parquet, one question each", file.string());
  return rows;
}

namespace {

std::string fields_of(const Row& row) {
  std::vector<std::string> names;
  for (const auto& [name, _] : row.fields.items()) names.push_back(name);
  return base::join(names, ", ");
}

}  // namespace

Template::Template(std::string source, std::string setting, bool may_be_constant)
    : source_(std::move(source)), setting_(std::move(setting)) {
  is_field_ = !may_be_constant && !source_.empty() && source_.find("{{") == std::string::npos && source_.find("{%") == std::string::npos;
  try {
    body_ = data::chat::parse(source_, /*trims=*/false);
  } catch (const DataError& error) {
    throw base::ConfigError("{} is no template: {}", setting_, error.what());
  }
}

std::string Template::text(const Row& row, const data::chat::Dict& more) const {
  if (const auto field = row.fields.find(source_); field != row.fields.end()) {
    if (field->is_string()) return field->get<std::string>();
    if (field->is_number_integer()) return field->dump();
    throw DataError("{}: {} is the field '{}', which is {}, not a text; write a template that makes one of it", row.where, setting_,
                    source_, field->type_name());
  }
  if (is_field_) throw DataError("{}: {} = \"{}\" is no field of the row, which has {}", row.where, setting_, source_, fields_of(row));
  auto variables = row.variables;
  variables.insert(variables.end(), more.begin(), more.end());
  try {
    return data::chat::evaluate(body_, variables, /*strict=*/true).text;
  } catch (const DataError& error) {
    throw DataError("{}: the template {}, {}; the row has {}", row.where, setting_, error.what(), fields_of(row));
  }
}

nlohmann::ordered_json Template::value(const Row& row) const {
  if (const auto field = row.fields.find(source_); field != row.fields.end()) return *field;
  return text(row);
}

}  // namespace ingot::eval
