// Blocks of remote files on a local disk, for all processes of a machine. Each block is a file of its own with a checksum behind it, and
// appears complete or not at all; when the folder grows beyond its limit, the blocks that nobody has used for longest go. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"

namespace ingot::data {

namespace fs = base::fs;

class BlockFolder {
 public:
  /// Lies in a folder of its own in `folder`. Nothing is made before something is kept.
  BlockFolder(const fs::path& folder, int64_t limit_bytes);

  /// Nothing where it is not kept, or is damaged, or has another size: then it is removed.
  std::optional<std::string> load(const std::string& name, int64_t size_bytes) const;
  /// `name`: "FILE/BLOCK". A disk that is full or may not be written is said once; the caller gets the block again from where it came.
  void keep(const std::string& name, std::string_view bytes);
  /// A whole file for who maps it: made by `fetch`, which fills `to`, unless it lies there undamaged. Processes of a machine do not do the
  /// same twice. Throws FileError, and what `fetch` throws.
  fs::path whole(const std::string& name, int64_t size_bytes, const std::function<void(const fs::path& to)>& fetch);

 private:
  fs::path begin(const fs::path& path) const;
  void fetch_whole(const fs::path& path, const std::function<void(const fs::path& to)>& fetch);
  bool is_sound(const fs::path& path, int64_t size_bytes) const;
  void publish_whole(const fs::path& unfinished, const fs::path& path);
  void count(int64_t kept_bytes);
  void make_room();

  const fs::path folder_;
  const int64_t limit_bytes_;
  std::atomic<int64_t> kept_since_look_;
  std::atomic<bool> has_warned_ = false;
};

}  // namespace ingot::data
