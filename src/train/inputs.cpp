#include "train/inputs.h"

#include "base/error.h"
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

void check_files(const RunConfig& config) {
  static_cast<void>(tokenizer_of(config));
  for (const auto& phase : lay_out_phases(config))
    for (const auto& source : phase.data.sources) data::check_is_there(source.path);
  for (const auto& path : config.data.validation) data::check_is_there(path);
}

}  // namespace ingot::train
