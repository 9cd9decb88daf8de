#include "train/inputs.h"

#include <fstream>

#include "base/error.h"
#include "data/blend.h"
#include "data/indexed_dataset.h"
#include "train/phases.h"

namespace ingot::train {

std::unique_ptr<data::Tokenizer> tokenizer_of(const RunConfig& config) {
  if (config.data.tokenizer.empty()) return nullptr;
  auto tokenizer = data::load_tokenizer(config.data.tokenizer);
  if (tokenizer->vocab_size() > config.model.vocab_size)
    throw base::ConfigError("the tokenizer {} has {} tokens, but model.vocab_size is {}; {} would work", config.data.tokenizer,
                            tokenizer->vocab_size(), config.model.vocab_size, (tokenizer->vocab_size() + 63) / 64 * 64);
  return tokenizer;
}

namespace {

void check_tokens(const char* setting, const std::string& path) {
  try {
    data::check_is_there(path);
  } catch (const base::FileError& missing) {
    throw base::FileError("{} = \"{}\": {}; ingot data tokenize makes such files", setting, path, missing.what());
  }
}

}  // namespace

void check_files(const RunConfig& config) {
  static_cast<void>(tokenizer_of(config));
  for (const auto& phase : lay_out_phases_over_data(config)) {
    if (phase.data.sources.empty())
      throw base::ConfigError("data.sources is empty: name at least one prefix made by 'ingot data tokenize'");
    for (const auto& source : phase.data.sources) {
      check_tokens("data.sources", source.path);
      if (!source.curriculum_scores.empty() && !std::ifstream(source.curriculum_scores))
        throw base::FileError("cannot read {} (curriculum_scores of the source {})", source.curriculum_scores, source.path);
    }
    if (!config.data.blend_file.empty()) data::BlendFile(config.data.blend_file, phase.data.sources);
  }
  for (const auto& path : config.data.validation) check_tokens("data.validation", path);
}

}  // namespace ingot::train
