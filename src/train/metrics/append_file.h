// A file that only grows, by whole records: each record is one write(2), so that a reader never sees half of one. A write
// that fails (disk full) is taken back, which keeps what was written before readable and lets a later append succeed.
// Belongs to one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace ingot::train {

class AppendFile {
 public:
  enum class Mode { create_new, append };

  /// `create_new` throws FileError when the file is already there; `append` creates it when it is missing.
  AppendFile(std::filesystem::path path, Mode mode);
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  /// Throws FileError naming the path and the reason; the file is then as it was before the call.
  void append(std::string_view record);
  /// Cuts the file off after its first `size_bytes` bytes.
  void truncate(int64_t size_bytes);

  int64_t size_bytes() const { return size_bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_bytes_ = 0;
};

}  // namespace ingot::train
