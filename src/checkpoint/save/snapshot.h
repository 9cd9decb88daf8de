// What a rank writes, copied out of the way of training. The bytes of its files, headers and padding included, are cut into blocks;
// blocks are copied in file order into staging memory, by any threads, and taken from there by the one that writes. If there is less
// memory than bytes, copying waits for blocks to be written: memory is bounded, and the caller feels the storage.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace ingot::checkpoint {

inline constexpr int64_t kUsualBlockBytes = int64_t{4} << 20;

/// Host memory in blocks, which saves use again and again. Any thread may take and give.
class Staging {
 public:
  /// Memory comes when it is first needed, up to `limit_bytes` (at least two blocks of `block_bytes`, a multiple of 4096). `allocate`:
  /// pinned memory for copies from a device, say; else pages of this process.
  using Allocate = std::function<std::shared_ptr<std::byte>(int64_t bytes)>;
  explicit Staging(int64_t limit_bytes, int64_t block_bytes = kUsualBlockBytes, Allocate allocate = {});
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Aligned to 4096. Null when all are in use.
  std::byte* take();
  void give(std::byte* block);
  int64_t held_bytes() const;
  int64_t block_bytes() const { return block_bytes_; }
  /// Takes memory for so many bytes now, and touches it: the first copy is then as fast as later ones.
  void reserve(int64_t bytes);

 private:
  std::byte* grow();
  int64_t block_bytes_, limit_blocks_;
  Allocate allocate_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<std::byte>> blocks_;
  std::vector<std::byte*> free_;
};

/// A file as it will be. Between and behind pieces it is zero.
struct FileImage {
  struct Piece {
    int64_t offset = 0, size_bytes = 0;
    const std::byte* data = nullptr;
    bool is_on_device = false;
  };
  int64_t size_bytes = 0;
  std::vector<Piece> pieces;  // by offset
};

class Snapshot {
 public:
  /// From a device, where pieces lie there, to host memory.
  using Copy = std::function<void(std::byte* to, const std::byte* from, int64_t bytes)>;
  /// The staging memory must outlive it.
  Snapshot(std::vector<FileImage> files, Staging& staging, Copy copy = {});
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  const std::vector<FileImage>& files() const { return files_; }
  int64_t size_bytes() const { return size_bytes_; }

  /// Copies blocks until none is left. Several threads may.
  void copy();
  /// Returns when all blocks have been copied, and lends a hand. What the pieces pointed to may change afterwards.
  void wait_copied();
  /// Whether somebody is in wait_copied() and not all has been copied.
  bool is_awaited() const;
  /// Seconds from the construction until all was copied; 0 before.
  double copied_s() const;

  struct Block {
    size_t number = 0, file = 0;
    int64_t offset = 0, size_bytes = 0;  // in the file; the last one's size is that of the data
    const std::byte* data = nullptr;     // behind the size zero up to a multiple of 4096
  };
  /// For the one thread that writes: the next block in file order, once it is there; nothing after the last.
  std::optional<Block> next();
  /// Whether next() would not wait.
  bool is_next_ready() const;
  /// Its memory may be used again.
  void release(size_t number);
  /// Nobody will write: copying ends as soon as it can, and wait_copied returns.
  void cancel();
  /// Why copying ended early: memory was refused, or the copy failed. Then it is cancelled.
  std::string failure() const;

 private:
  struct Place {
    size_t file;
    int64_t offset, size_bytes;
    std::byte* data = nullptr;
    bool copied = false;
  };
  void fill(Place& place) const;
  bool copy_next(bool wait);
  bool try_copy_next(bool wait);

  std::vector<FileImage> files_;
  Staging& staging_;
  Copy copy_;
  std::vector<Place> places_;
  int64_t size_bytes_ = 0, started_ns_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  size_t claimed_ = 0, copied_ = 0, taken_ = 0;
  double copied_s_ = 0;
  bool cancelled_ = false;
  int awaiting_ = 0;  // in wait_copied()
  std::string failure_;
};

}  // namespace ingot::checkpoint
