// PREFIX.reference: how likely a frozen model finds each document of PREFIX, the sum of log p over its learned tokens, as `ingot data
// score` writes it. Eight bytes "INGOTREF", then fp64 little-endian, one for each document.
#pragma once

#include <span>
#include <vector>

#include "data/indexed_dataset.h"

namespace ingot::data {

/// Throws DataError when the file is not there or not of this dataset.
std::vector<double> read_reference_scores(const IndexedDataset& dataset);
/// Replaces the file, which appears complete or not at all. Throws FileError.
void write_reference_scores(const IndexedDataset& dataset, std::span<const double> scores);

}  // namespace ingot::data
