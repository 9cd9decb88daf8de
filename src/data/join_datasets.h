// Several token datasets made one, without a look at their tokens.
#pragma once

#include <vector>

#include "data/indexed_dataset.h"

namespace ingot::data {

/// The documents of `parts`, in this order, as PREFIX.bin and .idx, with a .mask if any has one: byte for byte what one writer of all of
/// them writes. The files are copied as they are, so that time goes by their bytes; memory does not. Nothing carries the final names before
/// all is written, durably. Throws DataError for a part that is damaged or of another token type, and FileError.
void join_datasets(const std::vector<fs::path>& parts, const fs::path& prefix, TokenType type);

}  // namespace ingot::data
