// Rows of one document each, for data.packing = "documents": a document of more than seq_len tokens is several rows, all but the last of
// seq_len; one of fewer than two is none. Of every 64 documents the number of rows before them is known, 8 bytes for those: the index is
// read once when a dataset is opened, and a row is found by a binary search.
#pragma once

#include "data/packing.h"

namespace ingot::data {

/// The dataset must outlive it. Throws DataError when it has no document of two tokens, and ConfigError for rows of several lengths.
std::unique_ptr<Packing> make_document_rows(const IndexedDataset& dataset, Slice slice, const PackingOptions& options);

}  // namespace ingot::data
