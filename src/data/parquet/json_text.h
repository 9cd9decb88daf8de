// Arrow's values as JSON text.
#pragma once

#include <arrow/array/array_base.h>
#include <arrow/type_fwd.h>

#include <string>
#include <string_view>

namespace ingot::data::parquet {

/// Throws std::runtime_error for a type that has no JSON text, which names `column`: before any of it is read.
void require_json(const arrow::DataType& type, const std::string& column);

/// Bytes that are not UTF-8 stay what they are.
void append_string(std::string_view text, std::string& out);

/// Row `i` of an array of a type that require_json takes. Null, NaN and infinities are null. Throws std::runtime_error for what has no JSON
/// text, and for a text beyond `kMostLineBytes`.
void append_json(const arrow::Array& array, int64_t i, std::string& out);

constexpr size_t kMostLineBytes = size_t{256} << 20;

}  // namespace ingot::data::parquet
