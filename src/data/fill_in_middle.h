// Documents of a row turned round so that a causal model learns to fill in their middle (Bavarian et al., arXiv 2207.14255): a document is
// cut at two random places and becomes <prefix> … <suffix> … <middle> …, or in a share of cases <prefix> <suffix> … <middle> prefix … . It
// stays as long as it was: its last three tokens make room, and one that ends a document stays at the end. All tokens are learned, as in
// the paper.
#pragma once

#include <cstdint>

#include "data/config.h"
#include "data/packing.h"

namespace ingot::data {

/// Of the row that is sample `sample`; a pure function of (settings, sample, row). Documents of fewer than eight tokens, and those with
/// positions that have no target, stay as they are.
void fill_in_middle(const DataConfig& config, int64_t sample, const Row& row);

}  // namespace ingot::data
