// Checkpoints in a bucket. There is no rename, so a checkpoint is there once its metadata.bin is, which one put makes visible:
//
//   <prefix>/step_00001000/data_00000-<id>.bin …   written first; names hold the checkpoint's id, so that a save never touches a file
//   <prefix>/step_00001000/metadata.bin            that another metadata.bin names
//
// Copied to a disk as it lies there, it is a checkpoint. Writers of a folder lock it (writer_lock.h) by the object .lock in it. Who has the
// lock knows that what lies beside a checkpoint, in a folder without metadata.bin, or as an upload that has not ended, is of a writer that
// died: it goes with the next save. Without a lock it goes after a day.
//
// Paths are "s3://bucket/prefix/…". Any number of threads.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "checkpoint/storage/storage.h"
#include "object_store/client.h"
#include "object_store/writer_lock.h"

namespace ingot::object_store {

struct StorageOptions {
  int64_t part_bytes = int64_t{16} << 20;  // longer files go up in parts
  double lease_s = 30;                     // how long a writer that says nothing is taken for alive
};

class ObjectStorage : public checkpoint::Storage {
 public:
  /// Paths must lie in the client's bucket.
  explicit ObjectStorage(ClientOptions options, const StorageOptions& storage_options = {});
  ~ObjectStorage() override;

  std::unique_ptr<checkpoint::Sink> create(const std::filesystem::path& file) const override;
  std::unique_ptr<checkpoint::BlockSink> create_blocks(const std::filesystem::path& file, int64_t size_bytes) const override;
  std::unique_ptr<checkpoint::Source> open(const std::filesystem::path& file) const override;
  /// False also where the account may not read it.
  bool is_there(const std::filesystem::path& file) const;
  std::unique_ptr<checkpoint::Source> open_listed(const std::filesystem::path& file, const checkpoint::FolderEntry& entry) const override;
  std::vector<checkpoint::FolderEntry> list(const std::filesystem::path& folder) const override;
  std::vector<checkpoint::FolderEntry> list_leftovers(const std::filesystem::path& folder) const override;
  bool lists_sizes() const override { return true; }
  checkpoint::Reading reading() const override;
  void make_folder(const std::filesystem::path& folder) const override;
  std::unique_ptr<checkpoint::Lease> hold(const std::filesystem::path& folder, bool exclusive) const override;
  std::shared_ptr<void> lock_writers(const std::filesystem::path& folder, const std::string& holder,
                                     std::chrono::duration<double> patience) const override;
  bool publish(const std::filesystem::path& aside, const std::filesystem::path& target) const override;
  void hide(const std::filesystem::path& folder, const std::filesystem::path& aside) const override;
  void remove_folder(const std::filesystem::path& folder) const override;
  bool needs_unique_names() const override { return true; }

 private:
  std::string key_of(const std::filesystem::path& path) const;
  std::vector<checkpoint::FolderEntry> entries_of(const std::filesystem::path& folder, bool with_leftovers) const;
  std::vector<PendingUpload> uploads_in(const std::string& prefix) const;
  std::shared_ptr<WriterLock> lock_of(const std::filesystem::path& folder) const;
  bool put_visible(const std::string& key, const std::string& metadata, WriterLock* lock) const;

  Client client_;
  StorageOptions options_;
  mutable std::atomic<bool> uploads_said_ = false;                  // that they cannot be listed
  mutable std::mutex mutex_;                                        // guards what follows
  mutable std::map<std::string, std::weak_ptr<WriterLock>> locks_;  // by the folder's key
  mutable std::set<std::string> unlockable_;                        // folders that a lock was asked for in vain
  mutable std::map<std::string, std::string> writing_;              // metadata of saves under way, by their hidden folder
};

/// The storage of a path: the bucket of an s3:// URL, with the account that the environment gives, else the local file system. Lives as
/// long as the program.
const checkpoint::Storage& storage_of(const std::filesystem::path& path);
/// The same of the URL of an object.
const ObjectStorage& object_storage_of(const std::string& url);

}  // namespace ingot::object_store
