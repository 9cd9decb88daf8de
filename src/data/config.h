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
  double epochs = 0;  // not 0: in place of the weight, how often each phase goes through it

  // Easy rows first (data/curriculum.h).
  std::string curriculum = "none";
  std::string curriculum_scores;  // file
  std::string curriculum_pace = "linear";
  double curriculum_start = 0.1;
  int64_t curriculum_tokens = 0;

  // Not settings: where a phase of a recipe stands in the source (train/phases.h).
  int64_t number = -1;      // by which its order is drawn; -1: its place in the list
  int64_t unit_tokens = 0;  // not 0: phases draw samples of several lengths from it, and what is unseen is counted in units of so many
  struct Drawn {
    int64_t seq_len = 0, samples = 0;
  };
  std::vector<Drawn> drawn;  // by the phases before, in order
};

struct DataConfig {
  std::string tokenizer;
  std::vector<DataSource> sources;
  std::string blend_file;  // data/blend.h
  double temperature = 0;  // not 0: weights times tokens^(1/temperature)
  std::vector<std::string> validation;
  double validation_fraction = 0;
  int64_t seq_len = 512;
  std::string packing = "stream";
  std::string rows = "fixed";
  bool reset_documents = true;
  int64_t seed = 0;
  int64_t prefetch = 2;
  std::string cache;  // folder, of sources with a URL (remote/block_cache.h)
  int64_t cache_mib = 64 << 10;
  // Fill in the middle (data/fill_in_middle.h): share of documents, of which in the order suffix-prefix-middle; ids of its three tokens.
  double fim_rate = 0, fim_spm_rate = 0.5;
  int64_t fim_prefix = -1, fim_suffix = -1, fim_middle = -1;
  // Masked tokens of encoders (data/masked_tokens.h): the share that is learned, and what stands for them.
  double mask_rate = 0;
  int64_t mask_id = -1;
};

void declare_settings(base::SettingsTable& table, DataConfig& config);

/// Settings that contradict one another. Throws ConfigError.
void check(const DataConfig& config);

}  // namespace ingot::data
