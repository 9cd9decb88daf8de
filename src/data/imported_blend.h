// The blends of Megatron-LM and NeMo: lists of weights and prefixes of .bin/.idx pairs, or of prefixes alone, which are then taken in
// proportion to their sizes. What comes of them are settings of ingot's.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ingot::data {

struct ImportedBlend {
  struct Entry {
    std::string path;
    std::optional<double> weight;  // all of a list have one, or none
  };
  std::vector<Entry> train, validation, test;
};

// All throw DataError "NAME: …" for text of another form, words that are out of place, and weights that are none.

/// WEIGHT PREFIX WEIGHT PREFIX …, or PREFIX PREFIX …, as in Megatron's --data-path.
std::vector<ImportedBlend::Entry> parse_data_path(const std::vector<std::string>& words, const std::string& name);
/// The same in a file: --data-args-path.
std::vector<ImportedBlend::Entry> parse_data_args(const std::string& text, const std::string& name);
/// {"train": …, "valid": …, "test": …} of lists, or of one text each: --per-split-data-args-path.
ImportedBlend parse_per_split_data_args(const std::string& json, const std::string& name);
/// What stands at data_prefix in NeMo's YAML: a list, or train, validation and test of lists. Of YAML it takes what such lists need.
ImportedBlend parse_nemo_data_prefix(const std::string& yaml, const std::string& name);

/// Throws DataError for a source without its two files; those with a URL are not looked at.
void require_files(const ImportedBlend& blend);

/// TOML, for a run's configuration.
std::string settings_of(const ImportedBlend& blend);

}  // namespace ingot::data
