// The bytes of a file, of an object in a bucket (s3://bucket/key, with the account that the environment gives) or of a file of a web server
// (https://), unpacked as they are read where they are gzip, zstd or bzip2, of any number of streams one behind another. One thread at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"

namespace ingot::data {

/// Bytes [begin, end) of a file; end = -1: to its end. Only files of which is_plain_file() is true are cut.
struct FileRange {
  base::fs::path path;
  int64_t begin = 0, end = -1;
};

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

/// Known by the beginning. Throws FileError. Objects are read ahead, and what fails on the way is tried again (object_store/client.h).
std::unique_ptr<ByteStream> open_bytes(const FileRange& range);
inline std::unique_ptr<ByteStream> open_bytes(const base::fs::path& path) { return open_bytes(FileRange{path}); }

/// A file of this machine, neither compressed nor Parquet: its bytes are text as they lie there. Throws FileError.
bool is_plain_file(const base::fs::path& path);

/// Bytes of a file or object that can be read; 0 of a pipe. Throws FileError for what is not there, is a folder or is not readable.
int64_t readable_bytes(const base::fs::path& path);

/// The files, or objects, of which a pattern with *, ? and [ ] is the name, sorted; in a URL behind the last slash alone. What is no
/// pattern is a name. Throws FileError where there is none.
std::vector<base::fs::path> files_like(const std::string& pattern);

/// "a.jsonl" of "a.jsonl.gz": the name without .gz, .zst, .zstd or .bz2.
base::fs::path name_when_unpacked(const base::fs::path& path);

}  // namespace ingot::data
