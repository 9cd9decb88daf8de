// Where the bytes of a text file come from: the file as it is or unpacked (byte_stream.h), or what a format holds as JSON lines
// (parquet/source.h). One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/byte_stream.h"

namespace ingot::data {

class TextSource {
 public:
  virtual ~TextSource() = default;
  /// Appends about `bytes` more; false when there are no more behind them. Throws FileError when reading fails and DataError for a file
  /// that is damaged.
  virtual bool read(std::string& text, size_t bytes) = 0;
  /// Bytes of the file that are read, for progress: never beyond the size that it had, which is where they end.
  virtual int64_t read_bytes() const = 0;
  /// Each line is a row, whatever the file's name says.
  virtual bool has_rows() const { return false; }
};

/// Of a range behind a file's beginning nothing is looked at but its bytes. `field`: the only column that is wanted of a format that has
/// columns; "" = all. Throws FileError, and DataError for files of a kind that is not read.
std::unique_ptr<TextSource> open_text_source(const FileRange& range, const std::string& field);

}  // namespace ingot::data
