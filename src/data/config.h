// The settings of the data path, group `data`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"

namespace ingot::data {

struct DataSource {
  std::string path;   // prefix of a .bin/.idx pair
  double weight = 1;  // share of the samples, relative to the other sources
};

struct DataConfig {
  std::string tokenizer;
  std::vector<DataSource> sources;
  std::vector<std::string> validation;
  double validation_fraction = 0;
  int64_t seq_len = 512;
  std::string packing = "stream";
  bool reset_documents = true;
  int64_t seed = 0;
  int64_t prefetch = 2;
};

void declare_settings(base::SettingsTable& table, DataConfig& config);

/// Settings that contradict one another. Throws ConfigError.
void check(const DataConfig& config);

}  // namespace ingot::data
