// What `ingot data process` is told: sources of texts, steps that they go through in their order, and where to write (docs/data.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/settings.h"

namespace ingot::data::process {

struct SourceConfig {
  std::string name;                // in the report; "" = its place
  std::vector<std::string> files;  // or patterns: "web/*.jsonl.zst"; relative to the recipe
  std::string field = "text", format = "auto", split = "document-per-file";
};

/// All settings of all kinds; which ones a kind has is in steps.cpp.
struct StepConfig {
  std::string kind, name;
  std::vector<std::string> keep;       // rules, lines
  std::string of = "documents";        // duplicates
  int64_t least_characters = 0;        // duplicates of paragraphs and lines
  int64_t words = 0;                   // near_duplicates, contamination; 0 = 5, 13
  int64_t bands = 14, rows = 8;        // near_duplicates
  std::vector<std::string> files;      // contamination
  std::string field = "text";          // contamination
  double overlap = 0;                  // contamination
  std::vector<std::string> mask;       // personal_data
  std::vector<std::string> languages;  // language
  double share = 0.5;                  // language
  std::string model;                   // classifier
  double threshold = 0.5;              // classifier
};

struct Recipe {
  std::vector<SourceConfig> sources;
  std::vector<StepConfig> steps;
  std::string folder;         // to write into
  int64_t shard_mib = 256;    // of text in a file
  std::string work_folder;    // "" = inside of the other
  int64_t memory_mib = 1024;  // of sorted records, before they go to disk
  bool skip_bad = false;      // malformed JSON lines
};

void declare_settings(base::SettingsTable& table, Recipe& recipe);

/// `folder`: to write into, in place of the recipe's. Throws ConfigError and FileError.
Recipe load_recipe(const base::fs::path& path, const std::string& folder = "");

/// The files of a source in the order of their names, each pattern's behind those of the one before. `beside`: the recipe's folder. Throws
/// FileError for a pattern that nothing fits.
std::vector<base::fs::path> files_of(const std::vector<std::string>& patterns, const base::fs::path& beside);

}  // namespace ingot::data::process
