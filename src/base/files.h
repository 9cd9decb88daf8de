// Files as the rest of the program needs them: whole small files, memory-mapped large ones, and files that appear
// complete or not at all. Every failure is a FileError that names the path and the operating system's reason.
// Values of these classes belong to one thread; a MappedFile may be read by many.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ingot::base {

namespace fs = std::filesystem;

/// The whole file; refuses one larger than `limit_bytes`, so that a wrong path cannot exhaust memory.
std::string read_file(const fs::path& path, int64_t limit_bytes = int64_t{1} << 30);

/// Writes aside, fsyncs file and folder, then renames: readers see the old file or the new one, never a part.
void write_file_atomically(const fs::path& path, std::string_view content);

/// What processes that were killed left of that in the folder: files "NAME.tmp" and a process number. While nobody writes there.
void remove_unfinished_files(const fs::path& folder);

/// Adds `line` and its end to the file, made if need be, in one write: what several processes add at the same time does not mix. A torn
/// line that the file ends with stays a line of its own.
void append_line(const fs::path& path, std::string_view line);

/// The last `limit_bytes` of a file at most, from the beginning of a line on.
std::string read_last_lines(const fs::path& path, int64_t limit_bytes);

/// fsync of a folder, so that names created or renamed in it survive a power cut.
void sync_directory(const fs::path& path);

/// Creates the folder and its parents, each synced into its own parent; an error says which part is in the way.
void make_directories(const fs::path& path);

/// Where files may lie that nobody keeps: $TMPDIR, otherwise /tmp; an error says so when that is no folder.
fs::path temporary_folder();

/// A file opened for writing that reports every failure, ENOSPC included, and is closed on destruction.
class OutputFile {
 public:
  /// Creates the file, or truncates it.
  explicit OutputFile(fs::path path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void write(const void* data, int64_t size_bytes);
  void write(std::string_view text) { write(text.data(), static_cast<int64_t>(text.size())); }
  void sync();
  /// Closes and reports what the destructor would have to swallow.
  void close();

 private:
  fs::path path_;
  int descriptor_ = -1;
  int64_t written_bytes_ = 0;
};

/// What one process at a time may have: an advisory lock on a file, which is made if need be and stays. It ends with its process, however
/// that ends.
class FileLock {
 public:
  /// Nothing while another process holds it.
  static std::optional<FileLock> try_take(const fs::path& path);
  /// Whether a process has it, as far as is known; nothing is made.
  static bool is_held(const fs::path& path);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_ = -1;
};

/// A read-only mapping of a whole file. The spans it hands out must not outlive it.
class MappedFile {
 public:
  explicit MappedFile(const fs::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::byte* data() const { return data_; }
  int64_t size_bytes() const { return size_bytes_; }
  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_bytes_)}; }
  /// What was read stays in the page cache, but is this process's memory no longer. Others may go on reading.
  void release_pages() const;
  /// Reads are few and far from one another: the system need not read what lies around them.
  void expect_random_reads() const;
  /// These bytes are read soon, all of them.
  void read_ahead(int64_t begin_byte, int64_t end_byte) const;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  const std::byte* data_ = nullptr;
  int64_t size_bytes_ = 0;
};

}  // namespace ingot::base
