// Hugging Face's safetensors files: `model.safetensors`, or shards with `model.safetensors.index.json`. The reader maps the
// files and hands out spans of them; the writer streams tensors in the order given and makes files appear complete or not
// at all. Format: 8 bytes little-endian header size, JSON header (at most 100 MB), raw little-endian row-major data without
// holes. A reader may be used by many threads; its spans must not outlive it, and the files must not be truncated meanwhile.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "tensor/logical_tensor.h"

namespace ingot::checkpoint {

namespace fs = std::filesystem;

/// "BF16" for bf16 and so on. Throws CheckpointError for a dtype that the format does not know (complex128).
std::string_view safetensors_name(tensor::DType dtype);

class SafetensorsReader {
 public:
  /// A `.safetensors` file, or a folder that holds `model.safetensors` or `model.safetensors.index.json` (the single file
  /// is preferred when both exist, as in transformers). Everything is checked here: sizes, bounds, holes, overlaps, dtypes,
  /// duplicate names, the index against its shards. Throws CheckpointError naming file and tensor, or FileError.
  explicit SafetensorsReader(const fs::path& file_or_folder);

  /// Sorted by name.
  const std::vector<tensor::LogicalTensor>& tensors() const { return tensors_; }
  bool contains(std::string_view name) const { return entries_.find(name) != entries_.end(); }
  /// Both throw CheckpointError for an unknown name, with the nearest known one.
  const tensor::LogicalTensor& tensor(std::string_view name) const;
  /// Row-major little-endian elements; not necessarily aligned to the element size, so copy before casting.
  std::span<const std::byte> bytes(std::string_view name) const;
  const fs::path& file_of(std::string_view name) const;

  /// The `__metadata__` texts of all files together; of equal keys the first file's counts.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  int64_t data_bytes() const { return data_bytes_; }

  /// From now on the memory of the spans may be written to. What is written stays in this process: the files do not change.
  void allow_private_writes();

 private:
  struct Entry {
    size_t file;  // index into files_
    int64_t begin, size_bytes;
    tensor::LogicalTensor tensor;
  };
  const Entry& find(std::string_view name) const;
  void add_file(const fs::path& path);
  void add_folder(const fs::path& folder);

  std::vector<base::MappedFile> files_;
  std::vector<tensor::LogicalTensor> tensors_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::map<std::string, std::string> metadata_;
  int64_t data_bytes_ = 0;
  fs::path path_;
};

/// One tensor to write. `bytes` is called once, in order; its span must hold until the next call, so that a caller may
/// convert tensor after tensor in one buffer.
struct SafetensorsItem {
  tensor::LogicalTensor tensor;
  std::function<std::span<const std::byte>()> bytes;
};

/// transformers refuses files whose metadata lacks `format`.
inline const std::map<std::string, std::string> kTransformersMetadata = {{"format", "pt"}};

/// Where the first tensor begins, as the reference implementation has it.
constexpr int64_t kDataAlignment = 8;

/// Writes one file: aside, fsync, rename. Throws CheckpointError or FileError and leaves nothing behind.
void write_safetensors(const fs::path& file, const std::vector<SafetensorsItem>& items,
                       const std::map<std::string, std::string>& metadata = kTransformersMetadata, int64_t data_alignment = kDataAlignment);

/// Writes `model.safetensors`, or `model-0000i-of-0000n.safetensors` with the index when the tensors exceed
/// `shard_limit_bytes` (a larger tensor gets a shard of its own). All shards are written aside before the first is renamed,
/// the index comes last, and weights of an earlier export are then removed. Returns the files' names.
std::vector<std::string> write_safetensors_folder(const fs::path& folder, const std::vector<SafetensorsItem>& items,
                                                  int64_t shard_limit_bytes = 5'000'000'000,
                                                  const std::map<std::string, std::string>& metadata = kTransformersMetadata);

}  // namespace ingot::checkpoint
