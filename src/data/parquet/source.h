// A Parquet file's rows as JSON lines, by libingot_parquet.so (library.h), which is loaded when the first one is opened.
#pragma once

#include "data/text_source.h"

namespace ingot::data {

/// `column`: the only one that lines have; "" = all. Throws DataError where the library or Arrow's is missing, with what to do, for a
/// column that is not there, and for a damaged file.
std::unique_ptr<TextSource> open_parquet(const base::fs::path& path, const std::string& column);

}  // namespace ingot::data
