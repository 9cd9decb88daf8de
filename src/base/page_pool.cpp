#include "base/page_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"

namespace ingot::base {
namespace {

const auto kPage = static_cast<size_t>(sysconf(_SC_PAGESIZE));
constexpr size_t kSmallestReserve = 1 << 20;
// Blocks of a power of two would all begin at the same place of a page, and then compete for the same lines of the first cache.
constexpr size_t kSpacing = 5 * PagePool::kAlignment;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

PagePool::PagePool(size_t reserve_bytes) {
  for (reserve_bytes = round_up(reserve_bytes, kPage); reserve_bytes >= kSmallestReserve;
       reserve_bytes = round_up(reserve_bytes / 2, kPage)) {
    void* space = mmap(nullptr, reserve_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) continue;
    madvise(space, reserve_bytes, MADV_HUGEPAGE);  // a wish: steps are some 5 % faster where the kernel grants it
    base_ = static_cast<char*>(space);
    reserve_bytes_ = reserve_bytes;
    add_free(0, reserve_bytes_);
    return;
  }
}

PagePool::~PagePool() {
  if (base_) munmap(base_, reserve_bytes_);
}

void* PagePool::take(size_t bytes) {
  if (bytes > reserve_bytes_) return nullptr;
  bytes = round_up(std::max<size_t>(bytes, 1), kAlignment) + kSpacing;
  const std::lock_guard lock(mutex_);
  const auto fit = free_.lower_bound({bytes, 0});  // the smallest, and of those the lowest
  if (fit == free_.end()) return nullptr;
  const auto [free_bytes, offset] = *fit;
  free_.erase(fit);
  ranges_.erase(offset);
  in_use_bytes_ += bytes;
  peak_in_use_bytes_ = std::max(peak_in_use_bytes_, in_use_bytes_);
  ranges_.emplace(offset, Range{bytes, false});
  if (free_bytes > bytes) add_free(offset + bytes, free_bytes - bytes);
  make_room(pages_missing(offset, bytes));
  const size_t end = (offset + bytes + kPage - 1) / kPage;
  if (end > is_resident_.size()) is_resident_.resize(end);
  for (size_t page = offset / kPage; page < end; ++page) {
    resident_pages_ += !is_resident_[page];
    is_resident_[page] = true;
  }
  return base_ + offset;
}

void PagePool::give(void* block) {
  const std::lock_guard lock(mutex_);
  const auto range = ranges_.find(static_cast<size_t>(static_cast<char*>(block) - base_));
  if (range == ranges_.end() || range->second.is_free) throw Error("a block was given back to a page pool that it is not from, or twice");
  in_use_bytes_ -= range->second.bytes;
  make_free(range);
}

bool PagePool::owns(const void* block) const {
  const auto* at = static_cast<const char*>(block);
  return at >= base_ && at < base_ + reserve_bytes_;
}

void PagePool::trim() {
  const std::lock_guard lock(mutex_);
  for (const auto& [bytes, offset] : free_) return_pages(offset, bytes, resident_pages_);
  peak_in_use_bytes_ = in_use_bytes_;
}

PagePool::Use PagePool::use() const {
  const std::lock_guard lock(mutex_);
  return {in_use_bytes_, peak_in_use_bytes_, resident_pages_ * kPage, returned_bytes_};
}

// Joins the range with free neighbours.
void PagePool::make_free(Ranges::iterator range) {
  size_t offset = range->first, end = offset + range->second.bytes;
  auto next = ranges_.erase(range);
  if (next != ranges_.end() && next->second.is_free) {
    end += next->second.bytes;
    free_.erase({next->second.bytes, next->first});
    next = ranges_.erase(next);
  }
  if (next != ranges_.begin()) {
    const auto previous = std::prev(next);
    if (previous->second.is_free) {
      offset = previous->first;
      free_.erase({previous->second.bytes, previous->first});
      ranges_.erase(previous);
    }
  }
  add_free(offset, end - offset);
}

void PagePool::add_free(size_t offset, size_t bytes) {
  ranges_.insert_or_assign(offset, Range{bytes, true});
  free_.insert({bytes, offset});
}

size_t PagePool::pages_missing(size_t offset, size_t bytes) const {
  const size_t end = (offset + bytes + kPage - 1) / kPage;
  size_t missing = 0;
  for (size_t page = offset / kPage; page < end; ++page) missing += page >= is_resident_.size() || !is_resident_[page];
  return missing;
}

// The largest free ranges give pages back first: fewer calls, and small ones are soon used again.
void PagePool::make_room(size_t pages_needed) {
  const size_t most = most_resident_pages();
  for (auto range = free_.rbegin(); range != free_.rend() && resident_pages_ + pages_needed > most; ++range)
    return_pages(range->second, range->first, resident_pages_ + pages_needed - most);
}

// From the end of the range on, as far as its pages are wholly within it.
void PagePool::return_pages(size_t offset, size_t bytes, size_t most_pages) {
  const size_t begin = (offset + kPage - 1) / kPage;
  size_t page = std::min((offset + bytes) / kPage, is_resident_.size()), returned = 0;
  while (page > begin && returned < most_pages) {
    size_t last = page;
    while (last > begin && !is_resident_[last - 1]) --last;
    size_t first = last;
    while (first > begin && is_resident_[first - 1] && returned + (last - first) < most_pages) --first;
    if (first == last) break;
    if (madvise(base_ + first * kPage, (last - first) * kPage, MADV_DONTNEED) != 0) break;
    std::fill(is_resident_.begin() + static_cast<std::ptrdiff_t>(first), is_resident_.begin() + static_cast<std::ptrdiff_t>(last), false);
    returned += last - first;
    page = first;
  }
  resident_pages_ -= returned;
  returned_bytes_ += returned * kPage;
}

size_t PagePool::most_resident_pages() const { return (peak_in_use_bytes_ + peak_in_use_bytes_ / kReserveShare) / kPage + 1; }

}  // namespace ingot::base
