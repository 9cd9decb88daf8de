// What the files of a token dataset (indexed_dataset.h) have in common for who writes them: their beginnings, files that are written
// aside, and how those get their names. One thread at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "data/indexed_dataset.h"

namespace ingot::data::dataset_files {

inline constexpr std::string_view kIndexMagic{"MMIDIDX\0\0", 9};
inline constexpr int64_t kIndexHeaderBytes = 9 + 8 + 1 + 8 + 8;
inline constexpr std::string_view kMaskMagic = "INGOTMSK";

/// The number at place `index` of unaligned ones.
template <class T>
T load(const std::byte* base, int64_t index) {
  T value;
  std::memcpy(&value, base + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

/// A file of many small values.
struct BufferedFile {
  explicit BufferedFile(const fs::path& path) : file(path) {}
  template <class T>
  void put(T value) {
    put(std::string_view(reinterpret_cast<const char*>(&value), sizeof(T)));
  }
  void put(std::string_view text) {
    pending.append(text);
    flush_if_full();
  }
  void flush_if_full() {
    if (pending.size() >= size_t{1} << 20) flush();
  }
  void flush();
  void close();
  void close_durably();

  base::OutputFile file;
  std::string pending;
};

/// PREFIX.bin.tmp of ".bin": where a file is until it is complete.
fs::path aside(const fs::path& prefix, std::string_view suffix);

/// Writes PREFIX.idx.tmp, durably, of PREFIX.lengths.tmp (int32 [sequences]) and PREFIX.documents.tmp (int64 [documents + 1]).
void write_index(const fs::path& prefix, TokenType type, int64_t sequences, int64_t documents);

/// Renames FROM.bin, .mask and .idx, each with `tail` behind it, to those of `to`, the index last. Throws FileError.
void rename_files(const fs::path& from, std::string_view tail, bool has_mask, const fs::path& to);
/// The same durably, and after an index of that name is gone: an .idx belongs to the .bin beside it at any moment.
void publish(const fs::path& from, std::string_view tail, bool has_mask, const fs::path& to);

}  // namespace ingot::data::dataset_files
