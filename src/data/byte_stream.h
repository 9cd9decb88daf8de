// The bytes of a file, unpacked as they are read where it is gzip, zstd or bzip2, of any number of streams one behind another. One thread
// at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "base/files.h"

namespace ingot::data {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Fewer than asked for only at the end. Throws FileError when reading fails, and DataError naming the place for what is damaged or cut
  /// short.
  virtual size_t read(char* to, size_t bytes) = 0;
  /// Of the file that were read so far.
  virtual int64_t file_bytes() const = 0;
  virtual bool is_packed() const { return false; }
};

/// Known by the file's beginning. Throws FileError.
std::unique_ptr<ByteStream> open_bytes(const base::fs::path& path);

/// "a.jsonl" of "a.jsonl.gz": the name without .gz, .zst, .zstd or .bz2.
base::fs::path name_when_unpacked(const base::fs::path& path);

}  // namespace ingot::data
