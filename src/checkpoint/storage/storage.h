// Where checkpoints lie, behind one small interface: files that are written once, front to back, and folders that become
// visible by one act. POSIX file systems here; an object store would map `publish` to its own commit. Every failure is a
// CheckpointError that names the path, the system's reason and what to do. A Storage may be used by many threads; it must outlive the
// sinks, sources, leases and locks it hands out. A Sink belongs to one thread, a Source to many.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ingot::checkpoint {

namespace fs = std::filesystem;

class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(const void* data, int64_t size_bytes) = 0;
  /// Makes the content durable and closes. A sink that is destroyed without this leaves a file of unknown content.
  virtual void finish() = 0;
};

/// A file that is written block by block, several at once.
class BlockSink {
 public:
  virtual ~BlockSink() = default;
  /// Begins to write. `data` is aligned to kBlockAlignment and stays as it is until finished() has returned the ticket; `size_bytes` and
  /// `offset` are multiples of it. Waits while too many writes are under way.
  virtual void write(int64_t offset, const std::byte* data, int64_t size_bytes, uint64_t ticket) = 0;
  /// The ticket of a write that is done; with `wait`, waits for one. Nothing when there is none.
  virtual std::optional<uint64_t> finished(bool wait) = 0;
  /// Once all writes are finished: gives the file its size, which may cut the last block, makes it durable and closes.
  virtual void close(int64_t size_bytes) = 0;
};
inline constexpr int64_t kBlockAlignment = 4096;

class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t size_bytes() const = 0;
  /// What tells its content from another one under the same name; "" where the storage does not say.
  virtual std::string version() const { return {}; }
  /// Reads exactly these bytes.
  virtual void read_at(int64_t offset, void* destination, int64_t size_bytes) const = 0;
  /// The same for bytes that nobody on this machine will read soon again: past its page cache, unless they are there already.
  virtual void read_past_cache(int64_t offset, void* destination, int64_t size_bytes) const { read_at(offset, destination, size_bytes); }
};

/// Tells other processes that a folder is in use (shared: by writers and readers) or about to go (exclusive: by removers);
/// ends with the object, and with the process however it dies.
class Lease {
 public:
  virtual ~Lease() = default;
  /// False where the storage has no locks: then nothing is known about other users.
  virtual bool certain() const = 0;
};

struct FolderEntry {
  std::string name;
  bool is_folder = false;  // a symbolic link is not one
  double age_s = 0;        // since the last change of its content
  // Of a file, where the storage lists them with the names (Storage::lists_sizes).
  int64_t size_bytes = -1;
  std::string version{};  // of its content, for Storage::open_listed
};

/// How a storage is read fast.
struct Reading {
  int64_t request_bytes = int64_t{1} << 20;  // in the cache still when it is hashed; more under way at once made disks slower
  int at_once = 4;                           // requests that wait at the same time, each on a thread
};

class Storage {
 public:
  virtual ~Storage() = default;
  /// The name must not exist.
  virtual std::unique_ptr<Sink> create(const fs::path& file) const = 0;
  /// The same, for large files; `size_bytes` is what it will roughly have.
  virtual std::unique_ptr<BlockSink> create_blocks(const fs::path& file, int64_t size_bytes) const = 0;
  /// A regular file; symbolic links are refused.
  virtual std::unique_ptr<Source> open(const fs::path& file) const = 0;
  /// The same of a file that list() told of: where sizes are listed it need not be asked for again.
  virtual std::unique_ptr<Source> open_listed(const fs::path& file, const FolderEntry&) const { return open(file); }
  /// Sorted by name; an absent folder has no entries.
  virtual std::vector<FolderEntry> list(const fs::path& folder) const = 0;
  virtual bool lists_sizes() const { return false; }
  virtual Reading reading() const { return {}; }
  /// list() of a folder of checkpoints, with what dead writers have left where list() does not show it.
  virtual std::vector<FolderEntry> list_leftovers(const fs::path& folder) const { return list(folder); }
  /// Creates the folder and its parents durably, unless it is there.
  virtual void make_folder(const fs::path& folder) const = 0;
  /// Nothing when another user holds the folder in a way that excludes this one.
  virtual std::unique_ptr<Lease> hold(const fs::path& folder, bool exclusive) const = 0;
  /// Keeps the writers of other processes out of a folder of checkpoints as long as what it returns lives; `holder` is what they are told.
  /// Waits up to `patience` for one that ends; a writer that died is waited for until that is certain. Throws ConfigError that names the
  /// holder, and CheckpointError. Null where there is nothing for it: folders of a file system are locked by train/run_lock.h.
  virtual std::shared_ptr<void> lock_writers(const fs::path& /*folder*/, const std::string& /*holder*/,
                                             std::chrono::duration<double> /*patience*/) const {
    return nullptr;
  }
  /// Makes the complete folder `aside` durable and visible as `target`, in the same parent. A folder that was there before
  /// changes places with it and then lies at `aside` (returns true). After an exception `target` is what it was.
  virtual bool publish(const fs::path& aside, const fs::path& target) const = 0;
  /// Takes a folder out of sight in one act.
  virtual void hide(const fs::path& folder, const fs::path& aside) const = 0;
  virtual void remove_folder(const fs::path& folder) const = 0;
  /// Whether a checkpoint that is saved again lies where the old one does until it is published, so that its files need other names.
  virtual bool needs_unique_names() const { return false; }
  /// Whether what one process of a machine has read costs the next one of it no request: there is a page cache.
  virtual bool is_cached() const { return false; }
};

/// The kinds of system calls that PosixStorage makes.
enum class Call { make_folder, open, status, write, sync, close, rename, exchange, lock, list, read, remove, resize };

/// How PosixStorage writes blocks: by io_uring where the system has it, else by threads; past the page cache (O_DIRECT) where the file
/// system can.
struct BlockWriting {
  bool uring = true, direct = true;
  int depth = 8;  // writes under way at once
};

/// Lets tests act before each system call: count it, die, or make it fail.
class CallHook {
 public:
  virtual ~CallHook() = default;
  /// Returns 0 to go on, or the errno with which the call shall fail instead. May reduce `size_bytes` of reads and writes.
  virtual int before(Call call, const fs::path& path, size_t& size_bytes) = 0;
};

class PosixStorage : public Storage {
 public:
  /// `buffer_bytes` (a multiple of 4096) is what a sink collects before it writes.
  explicit PosixStorage(CallHook* hook = nullptr, int64_t buffer_bytes = int64_t{8} << 20, const BlockWriting& blocks = {})
      : hook_(hook), buffer_bytes_(buffer_bytes), blocks_(blocks) {}
  std::unique_ptr<Sink> create(const fs::path& file) const override;
  std::unique_ptr<BlockSink> create_blocks(const fs::path& file, int64_t size_bytes) const override;
  std::unique_ptr<Source> open(const fs::path& file) const override;
  std::vector<FolderEntry> list(const fs::path& folder) const override;
  void make_folder(const fs::path& folder) const override;
  std::unique_ptr<Lease> hold(const fs::path& folder, bool exclusive) const override;
  bool publish(const fs::path& aside, const fs::path& target) const override;
  void hide(const fs::path& folder, const fs::path& aside) const override;
  void remove_folder(const fs::path& folder) const override;
  bool is_cached() const override { return true; }

 private:
  void sync_folder(const fs::path& folder) const;
  void rename(const fs::path& from, const fs::path& to) const;
  void exchange(const fs::path& a, const fs::path& b) const;
  CallHook* hook_;
  int64_t buffer_bytes_;
  BlockWriting blocks_;
};

/// The name under which a replaced folder waits for a moment where the file system cannot exchange two names.
std::string waiting_name(const std::string& visible_name);

/// The local file system, for callers that name no storage.
const Storage& local_storage();

/// Which storage a path is of. What a program that knows buckets gives to those that must not (object_store/object_storage.h); the storages
/// live as long as the program.
using StorageOf = std::function<const Storage&(const fs::path&)>;
/// The local file system for every path; throws CheckpointError for URLs, such as s3://bucket/run.
const Storage& local_storage_of(const fs::path& path);

}  // namespace ingot::checkpoint
