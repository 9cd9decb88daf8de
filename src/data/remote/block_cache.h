// Files with a URL, read in blocks: by many requests at a time, ahead of who needs them, and kept in memory for a moment and on disk for
// long (block_folder.h). What comes out are the file's bytes, whatever the network, the disk and other processes do meanwhile; a file that
// changes while it is read is an error.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/files.h"
#include "data/remote/files.h"

namespace ingot::data {

namespace fs = base::fs;

struct CacheOptions {
  fs::path folder;                              // empty: `data` in the folder of ingot's measurements (base/environment.h)
  int64_t limit_bytes = int64_t{64} << 30;      // of the folder; passed by a few per cent at times
  int64_t block_bytes = int64_t{256} << 10;     // tests make it small
  int64_t in_memory_bytes = int64_t{64} << 20;  // per process; four times as much while what is asked for ahead needs it
  int connections = 16;
};

/// One per process and folder. Any thread.
class BlockCache {
 public:
  /// The one that others have of the same folder, or a new one.
  static std::shared_ptr<BlockCache> of(const CacheOptions& options);
  explicit BlockCache(const CacheOptions& options);
  /// Waits for the requests that are under way.
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;

  /// Bytes that came over the network so far.
  int64_t fetched_bytes() const;

 private:
  friend class CachedFile;
  struct State;
  std::unique_ptr<State> state_;
};

class CachedFile {
 public:
  /// Asks for its size. Throws FileError or ObjectStoreError.
  CachedFile(std::shared_ptr<BlockCache> cache, const std::string& url);

  int64_t size_bytes() const { return size_bytes_; }
  /// Waits for what is not there yet. Throws what the network failed with, and DataError beyond the end.
  void read(int64_t offset, std::span<std::byte> out) const;
  /// Asks for bytes that will be read soon, and does not wait.
  void read_ahead(int64_t begin, int64_t end) const;
  /// A local copy of the whole file; stays readable for who has it open, but may go from its name.
  fs::path local_copy() const;

 private:
  std::shared_ptr<BlockCache> cache_;
  std::string url_;
  int64_t number_ = 0, size_bytes_ = 0;
  mutable std::atomic<int64_t> last_block_ = -2, asked_until_ = 0;  // of whoever reads block after block
};

}  // namespace ingot::data
