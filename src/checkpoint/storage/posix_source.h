// A regular file that is read in any order by many threads. Internal to this folder.
#pragma once

#include <mutex>

#include "checkpoint/storage/posix_calls.h"

namespace ingot::checkpoint {

class PosixSource : public Source {
 public:
  PosixSource(CallHook* hook, const fs::path& file);
  ~PosixSource() override;
  int64_t size_bytes() const override { return size_bytes_; }
  void read_at(int64_t offset, void* destination, int64_t size_bytes) const override;
  void read_past_cache(int64_t offset, void* destination, int64_t size_bytes) const override;

 private:
  /// Whether it can be done at all; on first use, as most sources are opened to be looked at.
  bool can_read_directly() const;
  bool is_cached(int64_t offset, int64_t size_bytes) const;
  bool read_directly(int64_t offset, char* destination, int64_t size_bytes) const;

  Descriptor file_;
  int64_t size_bytes_ = 0;
  mutable std::once_flag first_;
  mutable int direct_ = -1;         // the same file with O_DIRECT; -1 where the file system cannot do it
  mutable void* mapped_ = nullptr;  // to ask which pages the cache holds; never read
};

}  // namespace ingot::checkpoint
