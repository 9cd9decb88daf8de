#include "comm/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/error.h"

namespace ingot::comm {
namespace {

using base::CommError;

constexpr int64_t kOutboxBytes = 512 << 10;  // two halves and those of the peers stay in the second and third level caches
constexpr int64_t kSlotBytes = 256 << 10;
constexpr size_t kPage = 4096;

size_t aligned(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

Segment::Segment(int size, bool has_outboxes)
    : size_(size), outbox_bytes_(has_outboxes ? kOutboxBytes : 0), slot_bytes_(has_outboxes ? kSlotBytes : 0) {
  lay_out();
}

void Segment::lay_out() {
  const auto ranks = static_cast<size_t>(size_), pairs = ranks * ranks;
  channels_at_ = aligned(sizeof(RankSlot) * ranks, kPage);
  counts_at_ = aligned(channels_at_ + sizeof(Channel) * pairs, kPage);
  outboxes_at_ = aligned(counts_at_ + sizeof(int64_t) * pairs, kPage);
  slots_at_ = outboxes_at_ + ranks * 2 * static_cast<size_t>(outbox_bytes_);
  total_ = slots_at_ + pairs * kChannelSlots * static_cast<size_t>(slot_bytes_);
}

int64_t Segment::collective_bytes(int size) { return size > 1 ? 2 * size * kOutboxBytes : 0; }
int64_t Segment::channel_bytes() { return kChannelSlots * kSlotBytes; }

void Segment::construct() {
  for (int rank = 0; rank < size_; ++rank) {
    new (&slot(rank)) RankSlot();
    for (int to = 0; to < size_; ++to) new (&channel(rank, to)) Channel();
  }
}

std::shared_ptr<Segment> Segment::on_heap(int size) {
  std::shared_ptr<Segment> segment(new Segment(size, false));
  segment->base_ = static_cast<char*>(std::aligned_alloc(kPage, aligned(segment->total_, kPage)));
  if (!segment->base_) throw std::bad_alloc();
  std::memset(segment->base_, 0, segment->total_);
  segment->construct();
  return segment;
}

void Segment::map(int descriptor) {
  auto* address = mmap(nullptr, total_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) throw CommError("cannot map {} bytes of shared memory: {}", total_, std::strerror(errno));
  base_ = static_cast<char*>(address);
  is_mapped_ = true;
}

std::shared_ptr<Segment> Segment::create_shared(int size) {
  std::shared_ptr<Segment> segment(new Segment(size, true));
  segment->descriptor_ = memfd_create("ingot-group", MFD_CLOEXEC);
  if (segment->descriptor_ < 0) throw CommError("cannot make shared memory: {}", std::strerror(errno));
  if (ftruncate(segment->descriptor_, static_cast<off_t>(segment->total_)) != 0)
    throw CommError("cannot make {} bytes of shared memory: {}", segment->total_, std::strerror(errno));
  segment->map(segment->descriptor_);
  segment->construct();
  return segment;
}

std::shared_ptr<Segment> Segment::map_shared(int size, const std::string& address) {
  std::shared_ptr<Segment> segment(new Segment(size, true));
  const int descriptor = open(address.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) throw CommError("cannot open the shared memory {} of a rank on this machine: {}", address, std::strerror(errno));
  const bool fits = lseek(descriptor, 0, SEEK_END) == static_cast<off_t>(segment->total_);
  segment->descriptor_ = descriptor;
  if (!fits) throw CommError("the shared memory {} has not the size that this program gives it; do all ranks run the same ingot?", address);
  segment->map(descriptor);
  segment->close_descriptor();
  return segment;
}

Segment::~Segment() {
  close_descriptor();
  if (is_mapped_) munmap(base_, total_);
  else std::free(base_);
}

void Segment::close_descriptor() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

void Segment::keep(std::shared_ptr<const void> memory) {
  const std::lock_guard lock(keeping_);
  kept_.push_back(std::move(memory));
}

std::string Segment::address() const { return fmt::format("/proc/{}/fd/{}", getpid(), descriptor_); }

RankSlot& Segment::slot(int rank) const { return reinterpret_cast<RankSlot*>(base_)[rank]; }
Channel& Segment::channel(int from, int to) const { return reinterpret_cast<Channel*>(base_ + channels_at_)[from * size_ + to]; }
int64_t* Segment::counts(int rank) const { return reinterpret_cast<int64_t*>(base_ + counts_at_) + static_cast<ptrdiff_t>(rank) * size_; }
char* Segment::outbox(int rank, int half) const {
  return base_ + outboxes_at_ + static_cast<size_t>(rank * 2 + half) * static_cast<size_t>(outbox_bytes_);
}
char* Segment::slot(int from, int to, int index) const {
  return base_ + slots_at_ + static_cast<size_t>((from * size_ + to) * kChannelSlots + index) * static_cast<size_t>(slot_bytes_);
}

}  // namespace ingot::comm
