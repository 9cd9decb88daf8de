#include "data/process/recipe.h"

#include <set>

#include "base/error.h"
#include "base/text.h"
#include "data/byte_stream.h"
#include "data/process/step.h"

namespace ingot::data::process {

using base::at_least;

static void declare_source(base::SettingsTable& table, SourceConfig& c) {
  table.add("name", c.name, "in the report");
  table.add("files", c.files, "text, JSON lines (also in gzip, zstd, bzip2) or Parquet: names, or patterns with * and ?");
  table.add("field", c.field, "member of a JSON line, or column of Parquet, that holds the text");
  table.add("format", c.format, {"auto", "text", "jsonl"}, "auto: by the file's ending");
  table.add("split", c.split, {"document-per-file", "paragraph", "line"}, "what a document of plain text is");
}

static void declare_step(base::SettingsTable& table, StepConfig& c) {
  table.add("kind", c.kind, step_kinds(), "what it does");
  table.add("name", c.name, "in the report");
  table.add("keep", c.keep, "rules, lines: a measure, a comparison and a number each, or the name of a set of them");
  table.add("of", c.of, {"documents", "paragraphs", "lines"}, "duplicates: of what all but the first go");
  table.add("least_characters", c.least_characters, at_least(0), "duplicates: shorter paragraphs and lines stay");
  table.add("words", c.words, at_least(0), "near_duplicates, contamination: in the runs of words that are compared; 0 = 5 and 13");
  table.add("bands", c.bands, base::IntegerRange{1, 1000}, "near_duplicates: of which one must be the same");
  table.add("rows", c.rows, base::IntegerRange{1, 100}, "near_duplicates: least hashes of a band");
  table.add("files", c.files, "contamination: texts of evaluations, of which no run of words may come");
  table.add("field", c.field, "contamination: member of their JSON lines; several are separated by commas");
  table.add("overlap", c.overlap, base::NumberRange{0, 1},
            "contamination: share of a document's runs from which on it goes; 0 = one run is enough");
  table.add("languages", c.languages, "language: codes as \"en\" of those that stay");
  table.add("share", c.share, base::NumberRange{0, 1}, "language: least share of the text that must be in it");
  table.add("model", c.model, "classifier: a file of 'ingot data train-classifier'");
  table.add("threshold", c.threshold, base::NumberRange{0, 1}, "classifier: least score of what stays");
  table.add("mask", c.mask, "personal_data: of email, ip, phone, card, iban; empty = all");
}

void declare_settings(base::SettingsTable& table, Recipe& recipe) {
  table.add("folder", recipe.folder, "where the texts that stay and the report are written");
  table.add("shard_mib", recipe.shard_mib, base::IntegerRange{1, 1 << 20}, "of text in one file");
  table.add("work_folder", recipe.work_folder, "where what does not fit into memory is written meanwhile; empty = inside of folder");
  table.add("memory_mib", recipe.memory_mib, base::IntegerRange{16, 1 << 24}, "of records that are sorted, before they go to disk");
  table.add("skip_bad", recipe.skip_bad, "pass over malformed JSON lines, and count them");
  table.add_list("sources", recipe.sources, &declare_source, "texts");
  table.add_list("steps", recipe.steps, &declare_step, "what is done to them, one behind another");
}

Recipe load_recipe(const base::fs::path& path, const std::string& folder) {
  Recipe recipe;
  base::SettingsTable table;
  declare_settings(table, recipe);
  const auto name = path.string();
  table.load_toml(base::read_file(path), name);
  if (recipe.sources.empty()) throw base::ConfigError("{}: it names no [[sources]] with files", name);
  for (const auto& wished : {folder, recipe.folder, recipe.work_folder})
    if (wished.find("://") != std::string::npos)
      throw base::ConfigError("{}: {} is a URL: name a folder on a disk, and copy what is written into it", name, wished);
  if (!folder.empty()) recipe.folder = base::fs::absolute(folder).string();
  if (recipe.folder.empty()) throw base::ConfigError("{}: folder is missing: where to write", name);
  const auto beside = path.parent_path();
  for (auto* folder : {&recipe.folder, &recipe.work_folder})
    if (!folder->empty()) *folder = (beside / *folder).string();
  std::set<std::string> names;
  for (size_t i = 0; i < recipe.sources.size(); ++i) {
    auto& source = recipe.sources[i];
    if (source.name.empty()) source.name = "source " + std::to_string(i + 1);
    if (!names.insert(source.name).second) throw base::ConfigError("{}: two sources are named {}", name, source.name);
    if (source.files.empty()) throw base::ConfigError("{}: {} names no files", name, source.name);
    auto files = files_of(source.files, beside);
    source.files.clear();
    for (const auto& file : files) source.files.push_back(file.string());
  }
  names.clear();
  for (size_t i = 0; i < recipe.steps.size(); ++i) {
    auto& step = recipe.steps[i];
    if (step.kind.empty()) throw base::ConfigError("{}: step {} has no kind: {}", name, i + 1, base::join(step_kinds(), ", "));
    if (step.name.empty()) step.name = step.kind;
    for (int again = 2; !names.insert(step.name).second; ++again) step.name = fmt::format("{} {}", step.kind, again);
    if (!step.model.empty()) step.model = (beside / step.model).string();
    if (!step.files.empty()) {
      auto files = files_of(step.files, beside);
      step.files.clear();
      for (const auto& file : files) step.files.push_back(file.string());
    }
  }
  return recipe;
}

// A folder's name, of which no character stands for others.
static base::fs::path as_pattern(const std::string& folder) {
  std::string escaped;
  for (const char c : folder) {
    if (std::string_view("*?[]{}\\").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::vector<base::fs::path> files_of(const std::vector<std::string>& patterns, const base::fs::path& beside) {
  std::vector<base::fs::path> files;
  for (const auto& pattern : patterns) {
    const bool is_url = pattern.find("://") != std::string::npos;
    const auto found = base::fs::exists(beside / pattern) && !is_url
                           ? std::vector{beside / pattern}
                           : files_like(is_url ? pattern : (as_pattern(beside.string()) / pattern).string());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

}  // namespace ingot::data::process
