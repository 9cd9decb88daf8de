// Files in the memory of this process, for programs that keep checkpoints without a disk, and for tests. As durable as the process.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "checkpoint/storage.h"

namespace ingot::checkpoint {

class MemoryStorage : public Storage {
 public:
  MemoryStorage();
  ~MemoryStorage() override;
  std::unique_ptr<Sink> create(const fs::path& file) const override;
  std::unique_ptr<BlockSink> create_blocks(const fs::path& file, int64_t size_bytes) const override;
  std::unique_ptr<Source> open(const fs::path& file) const override;
  std::vector<FolderEntry> list(const fs::path& folder) const override;
  void make_folder(const fs::path& folder) const override;
  std::unique_ptr<Lease> hold(const fs::path& folder, bool exclusive) const override;
  bool publish(const fs::path& aside, const fs::path& target) const override;
  void hide(const fs::path& folder, const fs::path& aside) const override;
  void remove_folder(const fs::path& folder) const override;

  /// Of all files.
  int64_t size_bytes() const;

 private:
  struct Files;
  std::shared_ptr<Files> files_;  // also of sinks, sources and leases
};

}  // namespace ingot::checkpoint
