// Checkpoints in a bucket. There is no rename, so a checkpoint is there once its metadata.bin is, which one put makes visible:
//
//   <prefix>/step_00001000/data_00000-<id>.bin …   written first; names hold the checkpoint's id, so that a save never touches a file
//   <prefix>/step_00001000/metadata.bin            that another metadata.bin names
//
// Copied to a disk as it lies there, it is a checkpoint. While a save is under way its metadata waits as ".metadata-<folder>". What a
// writer that died has left lies beside it, in a folder without metadata.bin, or as an upload that has not ended, and goes after a day.
//
// Paths are "s3://bucket/prefix/…". Any number of threads.
#pragma once

#include "checkpoint/storage/storage.h"
#include "object_store/client.h"

namespace ingot::object_store {

class ObjectStorage : public checkpoint::Storage {
 public:
  /// Paths must lie in the client's bucket.
  explicit ObjectStorage(ClientOptions options);
  ~ObjectStorage() override;

  std::unique_ptr<checkpoint::Sink> create(const std::filesystem::path& file) const override;
  std::unique_ptr<checkpoint::BlockSink> create_blocks(const std::filesystem::path& file, int64_t size_bytes) const override;
  std::unique_ptr<checkpoint::Source> open(const std::filesystem::path& file) const override;
  std::unique_ptr<checkpoint::Source> open_listed(const std::filesystem::path& file, const checkpoint::FolderEntry& entry) const override;
  std::vector<checkpoint::FolderEntry> list(const std::filesystem::path& folder) const override;
  std::vector<checkpoint::FolderEntry> list_leftovers(const std::filesystem::path& folder) const override;
  bool lists_sizes() const override { return true; }
  checkpoint::Reading reading() const override;
  void make_folder(const std::filesystem::path& folder) const override;
  std::unique_ptr<checkpoint::Lease> hold(const std::filesystem::path& folder, bool exclusive) const override;
  bool publish(const std::filesystem::path& aside, const std::filesystem::path& target) const override;
  void hide(const std::filesystem::path& folder, const std::filesystem::path& aside) const override;
  void remove_folder(const std::filesystem::path& folder) const override;
  bool needs_unique_names() const override { return true; }

 private:
  std::string key_of(const std::filesystem::path& path) const;
  std::vector<checkpoint::FolderEntry> entries_of(const std::filesystem::path& folder, bool with_leftovers) const;
  Client client_;
};

/// The storage of a path: the bucket of an s3:// URL, with the account that the environment gives, else the local file system. Lives as
/// long as the program.
const checkpoint::Storage& storage_of(const std::filesystem::path& path);

}  // namespace ingot::object_store
