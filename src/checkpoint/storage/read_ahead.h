// Brings checkpoints into the page cache before anyone loads them: for a process that waits to take the place of a lost rank, on a machine
// that has not written them itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace ingot::checkpoint {

class ReadAhead {
 public:
  /// `folder`: of checkpoints, on a file system. `most_bytes` at once: asks for no more than that of one checkpoint.
  ReadAhead(std::filesystem::path folder, int64_t most_bytes) : folder_(std::move(folder)), most_bytes_(most_bytes) {}

  /// To be called again and again: asks the kernel for the next part (64 MiB) of the newest checkpoint, or once a second whether there is a
  /// newer one. Does not wait for the bytes, and does not throw: what cannot be read is left to whoever loads it. Returns the bytes asked
  /// for.
  int64_t look();

 private:
  struct Part {
    std::filesystem::path file;
    int64_t offset, bytes;
  };
  void find_newest();

  std::filesystem::path folder_;
  int64_t most_bytes_;
  std::string newest_;
  std::vector<Part> parts_;  // not asked for yet, the next one last
  std::chrono::steady_clock::time_point looked_{};
};

}  // namespace ingot::checkpoint
