// A regular file that is read in any order by many threads. Internal to this folder.
#pragma once

#include "checkpoint/posix_calls.h"

namespace ingot::checkpoint {

class PosixSource : public Source {
 public:
  PosixSource(CallHook* hook, const fs::path& file);
  ~PosixSource() override;
  int64_t size_bytes() const override { return size_bytes_; }
  void read_at(int64_t offset, void* destination, int64_t size_bytes) const override;
  void read_past_cache(int64_t offset, void* destination, int64_t size_bytes) const override;

 private:
  bool is_cached(int64_t offset, int64_t size_bytes) const;
  bool read_directly(int64_t offset, char* destination, int64_t size_bytes) const;

  Descriptor file_;
  int direct_ = -1;         // the same file with O_DIRECT; -1 where the file system cannot do it
  void* mapped_ = nullptr;  // to ask which pages the cache holds; never read
  int64_t size_bytes_ = 0;
};

}  // namespace ingot::checkpoint
