// Rows of pairs of answers, for DPO: documents 2 i and 2 i + 1 are the chosen and the rejected answer to one prompt, each with the prompt
// before it (`ingot data tokenize --chat --preferences`). A pair lies whole in one row, rows are filled pair after pair, and what is left
// is padding. Pairs that are longer than a row are left out. What the reference says of them lies in PREFIX.reference (reference_scores.h).
#pragma once

#include "data/packing.h"

namespace ingot::data {

/// The dataset must outlive it. Throws DataError when it holds no pairs, none that fits, or has no scores.
std::unique_ptr<Packing> make_pair_packing(const IndexedDataset& dataset, Slice slice, const PackingOptions& options);

}  // namespace ingot::data
