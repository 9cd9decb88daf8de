// Memory for big blocks that come and go in the same order again and again, as the tensors of a training step do.
//
// Freed pages stay with the process, because taking them from the kernel again costs a step some 5 %; but no more pages stay
// than the most that were in use at once and a reserve of 1/64 of it. Where blocks do not fit into what is free in one piece,
// free pages elsewhere go back to the kernel first. So resident memory follows what is live, which can be predicted, and not
// how the heap happens to be cut up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace ingot::base {

/// All members may be called from any thread.
class PagePool {
 public:
  static constexpr size_t kAlignment = 64;
  static constexpr size_t kReserveShare = 64;  // the reserve is one of so many parts

  /// Takes address space only; half as much, and so on, where the kernel refuses (ulimit -v).
  explicit PagePool(size_t reserve_bytes);
  /// Blocks that were not given back are gone too.
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  /// Null when the address space has no gap of that size.
  void* take(size_t bytes);
  /// What take() gave.
  void give(void* block);
  bool owns(const void* block) const;
  /// All free pages go back to the kernel, and the most that was in use is counted from now on.
  void trim();

  struct Use {
    size_t in_use_bytes, peak_in_use_bytes;  // blocks, with what alignment adds
    size_t resident_bytes;                   // pages that the kernel has given, whether in use or free
    size_t returned_bytes;                   // pages that went back to the kernel, since the start
  };
  Use use() const;

 private:
  struct Range {
    size_t bytes;
    bool is_free;
  };
  using Ranges = std::map<size_t, Range>;  // by offset; they cover the whole reserve

  void make_free(Ranges::iterator range);
  void add_free(size_t offset, size_t bytes);
  size_t pages_missing(size_t offset, size_t bytes) const;
  void make_room(size_t pages_needed);
  void return_pages(size_t offset, size_t bytes, size_t most_pages);
  size_t most_resident_pages() const;

  mutable std::mutex mutex_;
  char* base_ = nullptr;
  size_t reserve_bytes_ = 0;
  Ranges ranges_;
  std::set<std::pair<size_t, size_t>> free_;  // size and offset of free ranges
  std::vector<bool> is_resident_;             // by page, as far as any block ever reached
  size_t resident_pages_ = 0, in_use_bytes_ = 0, peak_in_use_bytes_ = 0, returned_bytes_ = 0;
};

}  // namespace ingot::base
