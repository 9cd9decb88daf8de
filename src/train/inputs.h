// The files that a run reads besides its configuration.
#pragma once

#include <memory>

#include "data/tokenizer.h"
#include "train/config.h"

namespace ingot::train {

/// The tokenizer of the run; null without. Throws what its files are wrong with, and ConfigError when it has more tokens than the model.
std::unique_ptr<data::Tokenizer> tokenizer_of(const RunConfig& config);

/// Throws the error of a tokenizer, or of a dataset of any phase, that is not there: before anything that takes time. Datasets are not
/// looked into.
void check_files(const RunConfig& config);

}  // namespace ingot::train
