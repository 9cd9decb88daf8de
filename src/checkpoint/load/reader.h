// Reading a checkpoint: any box of any tensor, whatever pieces it was saved in. Opening checks the metadata and that every
// file is there with the right size and id. With `verify` (the default) no byte is handed out that was not covered by a
// checksum: a piece that is wanted in part is read whole for it, which pieces of bounded size keep cheap.
//
// Many threads may read at once. While a Reader lives, no other process of this machine removes the checkpoint.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/metadata.h"
#include "checkpoint/storage/storage.h"

namespace ingot::checkpoint {

/// The bytes of the metadata of the checkpoint in folder `path`, as they are.
std::string read_metadata(const fs::path& path, const Storage& storage = local_storage());
/// Decodes them; the folder's name, if it is that of a step, must agree.
Metadata load_metadata(const fs::path& path, const Storage& storage = local_storage());

struct ReaderOptions {
  bool verify = true;                // compare checksums of all that is read
  bool check_files = true;           // look at every file when opening, not only at those that are read
  const Storage* storage = nullptr;  // the local file system unless given; must outlive the reader
  std::vector<fs::path> files;       // where each file lies, if not in the checkpoint's folder; empty paths are never read
};

/// What read has cost so far: bytes asked for, and bytes taken from storage.
struct ReadCounters {
  int64_t wanted_bytes = 0, read_bytes = 0;
};

class Reader {
 public:
  /// Throws CheckpointError naming the file, the reason and what to do.
  explicit Reader(const fs::path& path, const ReaderOptions& options = {});
  /// The same with metadata that was read before, by another rank.
  Reader(const fs::path& path, const std::string& metadata, const ReaderOptions& options);

  const fs::path& path() const { return path_; }
  const Metadata& metadata() const { return metadata_; }
  int64_t step() const { return metadata_.step; }

  /// Sorted by name.
  std::vector<tensor::LogicalTensor> list() const;
  bool contains(std::string_view name) const { return places_.contains(name); }
  /// Throws CheckpointError for an unknown name, with the nearest known one.
  const tensor::LogicalTensor& tensor(std::string_view name) const { return record(name).tensor; }

  /// Fills `destination` with the row-major elements of `box`. After an exception its content is undefined: load into
  /// memory that is not yet in use.
  void read(std::string_view name, const tensor::Box& box, std::byte* destination) const;
  /// Which of metadata().tensors it is; throws like tensor().
  uint32_t place_of(std::string_view name) const;
  /// Fills `destination` with the bytes of one piece of metadata(); `is_shared`: other processes of this machine read it too.
  void read_piece(size_t tensor, size_t piece, std::byte* destination, bool is_shared = false) const;
  /// The whole tensor.
  std::vector<std::byte> read(std::string_view name) const;

  std::vector<std::string> extras() const;
  bool has_extra(std::string_view name) const;
  /// Throws CheckpointError when there is none of that name.
  std::string extra(std::string_view name) const;

  ReadCounters counters() const { return {wanted_bytes_.load(), read_bytes_.load()}; }

 private:
  const TensorRecord& record(std::string_view name) const;
  void read_from_piece(const TensorRecord& record, const PieceRecord& piece, const tensor::Box& wanted, std::byte* destination) const;
  void read_piece(const TensorRecord& record, const PieceRecord& piece, std::byte* destination, bool is_shared) const;
  void read_part(const TensorRecord& record, const PieceRecord& piece, const tensor::Box& common, const tensor::Box& wanted,
                 std::byte* destination) const;
  /// Reads a whole range and compares its checksum.
  bool read_whole(const Source& source, int64_t offset, std::byte* destination, int64_t size_bytes, const Digest& digest,
                  bool is_shared) const;
  /// Opens on first use and checks size and header.
  const Source& source(size_t file) const;
  std::unique_ptr<Source> open(const fs::path& file) const;
  /// Whether it is there, with this size: from one list of the folder, where that tells.
  void check_listed(const FileRecord& file) const;

  fs::path path_;
  ReaderOptions options_;
  const Storage& storage_;
  std::unique_ptr<Lease> lease_;
  Metadata metadata_;
  std::map<std::string_view, size_t> places_;  // names within metadata_.tensors

  fs::path path_of(size_t file) const;

  std::map<std::string, FolderEntry, std::less<>> listed_;  // where the storage lists sizes
  struct OpenFile {
    std::mutex mutex;
    std::unique_ptr<Source> source;
  };
  mutable std::vector<OpenFile> files_;
  mutable std::mutex mutex_;  // guards the one below
  mutable std::map<const TensorRecord*, std::pair<std::vector<tensor::Box>, BoxIndex>> indices_;
  mutable std::atomic<int64_t> wanted_bytes_{0}, read_bytes_{0};
};

}  // namespace ingot::checkpoint
