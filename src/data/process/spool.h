// Documents on disk between two passes: blocks that are compressed each, in the order in which they came.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "data/process/document.h"

namespace ingot::data::process {

/// Documents behind one another, compressed with zstd. Any thread.
std::string packed(const std::vector<Document>& documents);
/// Throws DataError for a damaged block.
std::vector<Document> unpacked(const std::string& block);

/// What a block has unpacked. Throws DataError for a damaged one.
int64_t plain_bytes(const std::string& block);

/// One zstd frame of a text. Any thread.
std::string compressed(std::string_view text, int level);

class SpoolWriter {
 public:
  explicit SpoolWriter(const base::fs::path& path) : file_(path) {}
  void add(const std::string& block, int64_t documents);
  void close() { file_.close(); }
  int64_t bytes() const { return bytes_; }

 private:
  base::OutputFile file_;
  int64_t bytes_ = 0;
};

class SpoolReader {
 public:
  explicit SpoolReader(const base::fs::path& path);
  /// False at the end. Throws FileError for a file that is cut short.
  bool next(std::string& block, int64_t& documents);
  int64_t bytes() const { return bytes_; }

 private:
  base::fs::path path_;
  std::ifstream file_;
  int64_t bytes_ = 0, left_ = 0;  // left: not read yet
};

}  // namespace ingot::data::process
