#include "data/dataset_files.h"

#include "base/error.h"

namespace ingot::data::dataset_files {
namespace {

void rename_or_throw(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw base::FileError("cannot rename {} to {}: {}", from.string(), to.string(), error.message());
}

}  // namespace

void BufferedFile::flush() {
  file.write(pending);
  pending.clear();
}

void BufferedFile::close() {
  flush();
  file.close();
}

void BufferedFile::close_durably() {
  flush();
  file.sync();
  file.close();
}

fs::path aside(const fs::path& prefix, std::string_view suffix) { return prefix.string() + std::string(suffix) + ".tmp"; }

void write_index(const fs::path& prefix, TokenType type, int64_t sequences, int64_t documents) {
  BufferedFile out(aside(prefix, ".idx"));
  out.put(kIndexMagic);
  out.put(uint64_t{1});
  out.put(static_cast<uint8_t>(type));
  out.put(static_cast<uint64_t>(sequences));
  out.put(static_cast<uint64_t>(documents + 1));
  out.flush();
  const base::MappedFile lengths(aside(prefix, ".lengths")), doc_index(aside(prefix, ".documents"));
  out.file.write(lengths.data(), lengths.size_bytes());
  int64_t pointer = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    out.put(pointer);
    pointer += load<int32_t>(lengths.data(), s) * size_bytes(type);
  }
  out.flush();
  out.file.write(doc_index.data(), doc_index.size_bytes());
  out.close_durably();
}

void rename_files(const fs::path& from, std::string_view tail, bool has_mask, const fs::path& to) {
  const auto move = [&](const char* suffix) { rename_or_throw(from.string() + suffix + std::string(tail), to.string() + suffix); };
  move(".bin");
  std::error_code ignored;
  if (has_mask) move(".mask");
  else fs::remove(to.string() + ".mask", ignored);
  move(".idx");
}

void publish(const fs::path& from, std::string_view tail, bool has_mask, const fs::path& to) {
  const fs::path folder = to.has_parent_path() ? to.parent_path() : fs::path(".");
  // A crash between the two renames must not leave a new .bin beside an old .idx.
  std::error_code ignored;
  fs::remove(to.string() + ".idx", ignored);
  base::sync_directory(folder);
  rename_files(from, tail, has_mask, to);
  base::sync_directory(folder);
}

}  // namespace ingot::data::dataset_files
