// Zip archives as torch.save makes them: entries that are stored, not compressed, somewhere within a larger file. Reads any
// range of an entry without the rest, zip64 included, and checks CRC-32 of what is read whole; writes archives front to back.
// Format: PKWARE's APPNOTE 6.3. Archives are hostile: all offsets are checked against the archive's own bytes. Faults are
// CheckpointErrors that name the file and the byte. A FileView and a ZipReader may be used by many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/storage/storage.h"

namespace ingot::interchange {

/// CRC-32 of zip and PNG; `crc` is that of the bytes before, 0 at first.
uint32_t crc32(uint32_t crc, const void* data, int64_t size_bytes);

/// A part of a file. Its first and last bytes are read at once, when it is made, and kept: there the small parts of an archive lie.
class FileView {
 public:
  FileView(std::shared_ptr<const checkpoint::Source> source, std::string file, int64_t begin, int64_t size_bytes);

  int64_t size_bytes() const { return size_bytes_; }
  int64_t begin() const { return begin_; }
  const std::string& file() const { return file_; }
  /// Reads exactly these bytes of the view; throws CheckpointError when they are not all within it.
  void read_at(int64_t offset, void* destination, int64_t size_bytes) const;
  /// Throws CheckpointError "<file>, byte <of the file>: <what>".
  [[noreturn]] void fail(int64_t offset, const std::string& what) const;

 private:
  std::shared_ptr<const checkpoint::Source> source_;
  std::string file_;
  int64_t begin_ = 0, size_bytes_ = 0;
  std::string head_, tail_;
};

struct ZipEntry {
  std::string name;
  uint32_t crc = 0;
  int64_t size_bytes = 0;
  int64_t header_offset = 0;  // of its local header within the archive
};

class ZipReader {
 public:
  /// The view must be one archive, first to last byte.
  explicit ZipReader(FileView view);

  const FileView& view() const { return view_; }
  const std::vector<ZipEntry>& entries() const { return entries_; }
  /// Null when there is none of that name.
  const ZipEntry* find(std::string_view name) const;
  /// Where the entry's bytes begin within the view; reads its local header.
  int64_t data_offset(const ZipEntry& entry) const;
  /// The whole entry. Throws CheckpointError when the CRC is wrong and `check_crc` is set.
  std::string read(const ZipEntry& entry, bool check_crc = true) const;
  /// Reads the whole entry in parts and compares its CRC.
  void check(const ZipEntry& entry) const;
  [[noreturn]] void wrong_crc(const ZipEntry& entry) const;

 private:
  void read_directory(int64_t begin, int64_t size_bytes, uint64_t count);
  FileView view_;
  std::vector<ZipEntry> entries_;
};

class ZipWriter {
 public:
  using Out = std::function<void(const void* data, int64_t size_bytes)>;
  /// With `zip64` all entries are written as those beyond 4 GiB must be.
  explicit ZipWriter(Out out, bool zip64 = false) : out_(std::move(out)), zip64_(zip64) {}
  /// The entry's bytes begin at a multiple of `alignment` (a power of two, at most 4096) of the archive.
  void add(const std::string& name, const void* data, int64_t size_bytes, int64_t alignment = 64);
  /// Ends the archive; returns its size in bytes.
  int64_t finish();

 private:
  void put(std::string_view bytes);
  Out out_;
  bool zip64_;
  int64_t at_ = 0;
  std::vector<ZipEntry> entries_;
};

}  // namespace ingot::interchange
