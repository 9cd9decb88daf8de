// Masked-token prediction (BERT, arXiv 1810.04805, section 3.1) for encoders: of the tokens of a row data.mask_rate are learned, where they
// stand; of those 8 in 10 become the mask, 1 in 10 another token of the vocabulary, and 1 in 10 stay. Which ones is a pure function of
// (data.seed, sample), in validation as in training.
#pragma once

#include "data/config.h"
#include "data/packing.h"

namespace ingot::data {

/// `row` as packed for the next token: targets become the tokens themselves, kIgnoredTarget where nothing is learned. Padding, and tokens
/// that PREFIX.mask says not to learn, are left alone. `vocab_size`: of the tokens that others become.
void mask_tokens(const DataConfig& config, int64_t sample, int64_t vocab_size, const Row& row);

}  // namespace ingot::data
