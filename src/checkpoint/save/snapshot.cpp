#include "checkpoint/save/snapshot.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "checkpoint/storage/storage.h"

namespace ingot::checkpoint {
namespace {

int64_t now_ns() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

std::shared_ptr<std::byte> pages(int64_t bytes) {
  void* memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  ::madvise(memory, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return {static_cast<std::byte*>(memory), [bytes](std::byte* p) { ::munmap(p, static_cast<size_t>(bytes)); }};
}

}  // namespace

Staging::Staging(int64_t limit_bytes, int64_t block_bytes, Allocate allocate)
    : block_bytes_(block_bytes),
      limit_blocks_(std::max<int64_t>(2, (limit_bytes + block_bytes - 1) / block_bytes)),
      allocate_(allocate ? std::move(allocate) : Allocate(pages)) {}

Staging::~Staging() = default;

std::byte* Staging::grow() {
  blocks_.push_back(allocate_(block_bytes_));
  return blocks_.back().get();
}

std::byte* Staging::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) return static_cast<int64_t>(blocks_.size()) < limit_blocks_ ? grow() : nullptr;
  std::byte* block = free_.back();
  free_.pop_back();
  return block;
}

void Staging::give(std::byte* block) {
  const std::lock_guard lock(mutex_);
  free_.push_back(block);
}

int64_t Staging::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(blocks_.size()) * block_bytes_;
}

void Staging::reserve(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const int64_t wanted = std::min(limit_blocks_, (bytes + block_bytes_ - 1) / block_bytes_);
  while (static_cast<int64_t>(blocks_.size()) < wanted) {
    free_.push_back(grow());
    std::memset(free_.back(), 0, static_cast<size_t>(block_bytes_));
  }
}

Snapshot::Snapshot(std::vector<FileImage> files, Staging& staging, Copy copy)
    : files_(std::move(files)), staging_(staging), copy_(std::move(copy)), started_ns_(now_ns()) {
  for (size_t file = 0; file < files_.size(); ++file) {
    size_bytes_ += files_[file].size_bytes;
    for (int64_t offset = 0; offset < files_[file].size_bytes; offset += staging_.block_bytes())
      places_.push_back({file, offset, std::min(staging_.block_bytes(), files_[file].size_bytes - offset)});
  }
}

Snapshot::~Snapshot() {
  for (const auto& place : places_)
    if (place.data) staging_.give(place.data);
}

void Snapshot::fill(Place& place) const {
  const auto& pieces = files_[place.file].pieces;
  const int64_t begin = place.offset, end = begin + place.size_bytes;
  auto piece =
      std::partition_point(pieces.begin(), pieces.end(), [&](const FileImage::Piece& p) { return p.offset + p.size_bytes <= begin; });
  int64_t at = begin;
  const auto zero_until = [&](int64_t to) {
    if (to > at) std::memset(place.data + (at - begin), 0, static_cast<size_t>(to - at));
  };
  for (; piece != pieces.end() && piece->offset < end; ++piece) {
    const int64_t from = std::max(begin, piece->offset), to = std::min(end, piece->offset + piece->size_bytes);
    if (to <= from) continue;
    zero_until(from);
    if (piece->is_on_device) copy_(place.data + (from - begin), piece->data + (from - piece->offset), to - from);
    else std::memcpy(place.data + (from - begin), piece->data + (from - piece->offset), static_cast<size_t>(to - from));
    at = to;
  }
  zero_until(begin + (place.size_bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment);
}

// What goes wrong here must reach the save, from whichever thread lends its hand.
bool Snapshot::copy_next(bool wait) {
  try {
    return try_copy_next(wait);
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = error.what();
    cancelled_ = true;
  }
  changed_.notify_all();
  return false;
}

bool Snapshot::try_copy_next(bool wait) {
  Place* place = nullptr;
  {
    std::unique_lock lock(mutex_);
    while (true) {
      if (cancelled_ || claimed_ == places_.size()) return false;
      if (std::byte* memory = staging_.take()) {
        place = &places_[claimed_++];
        place->data = memory;
        break;
      }
      if (!wait) return false;
      changed_.wait_for(lock, std::chrono::milliseconds(2));  // another save may give the memory back
    }
  }
  try {
    fill(*place);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    ++copied_;  // nobody waits for it
    throw;
  }
  {
    const std::lock_guard lock(mutex_);
    place->copied = true;
    if (++copied_ == places_.size()) copied_s_ = static_cast<double>(now_ns() - started_ns_) * 1e-9;
  }
  changed_.notify_all();
  return true;
}

void Snapshot::copy() {
  while (copy_next(true)) {
  }
}

void Snapshot::wait_copied() {
  {
    const std::lock_guard lock(mutex_);
    ++awaiting_;
  }
  copy();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return cancelled_ ? copied_ == claimed_ : copied_ == places_.size(); });
  --awaiting_;
}

bool Snapshot::is_awaited() const {
  const std::lock_guard lock(mutex_);
  return awaiting_ > 0 && copied_ < places_.size();
}

double Snapshot::copied_s() const {
  const std::lock_guard lock(mutex_);
  return copied_s_;
}

std::optional<Snapshot::Block> Snapshot::next() {
  if (taken_ == places_.size()) return std::nullopt;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return places_[taken_].copied || cancelled_; });
  if (cancelled_) return std::nullopt;
  const auto& place = places_[taken_];
  return Block{taken_++, place.file, place.offset, place.size_bytes, place.data};
}

bool Snapshot::is_next_ready() const {
  const std::lock_guard lock(mutex_);
  return cancelled_ || taken_ == places_.size() || places_[taken_].copied;
}

void Snapshot::release(size_t number) {
  {
    const std::lock_guard lock(mutex_);
    staging_.give(std::exchange(places_[number].data, nullptr));
  }
  changed_.notify_all();
}

std::string Snapshot::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Snapshot::cancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  changed_.notify_all();
}

}  // namespace ingot::checkpoint
