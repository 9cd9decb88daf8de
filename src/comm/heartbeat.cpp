#include "comm/heartbeat.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace ingot::comm {

// A text that a process writes while another may read it: into the one of two places that is not read, which then change. So whoever dies
// in the middle of it leaves the text before.
template <size_t kSize>
struct SharedText {
  std::atomic<uint32_t> version;  // its last bit: the place to read
  std::atomic<bool> is_written;
  struct Place {
    std::atomic<uint32_t> size;
    std::atomic<char> text[kSize];
  } places[2];

  void write(std::string_view value) {
    if (is_written.exchange(true, std::memory_order_acquire)) return;  // by another thread, whose text is as new
    const auto next = version.load(std::memory_order_relaxed) + 1;
    auto& place = places[next % 2];
    const auto count = std::min(value.size(), kSize);
    std::atomic_thread_fence(std::memory_order_release);
    for (size_t i = 0; i < count; ++i) place.text[i].store(value[i], std::memory_order_relaxed);
    place.size.store(static_cast<uint32_t>(count), std::memory_order_relaxed);
    version.store(next, std::memory_order_release);
    is_written.store(false, std::memory_order_release);
  }
  std::string read() const {
    std::string value;
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const auto before = version.load(std::memory_order_acquire);
      const auto& place = places[before % 2];
      value.resize(std::min<size_t>(place.size.load(std::memory_order_relaxed), kSize));
      for (size_t i = 0; i < value.size(); ++i) value[i] = place.text[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (version.load(std::memory_order_relaxed) == before) break;
    }
    return value;
  }
};

// Memory of zeros is a rank that has not come.
struct alignas(4096) HeartbeatPage {
  std::atomic<int64_t> process, beat_ns, longest_gap_ns, step, steps_begun, waiting;
  SharedText<512> operation;
  SharedText<3000> run_directory;
};
static_assert(sizeof(HeartbeatPage) == 8192);

static bool is_settled(const HeartbeatPage& page) { return page.step > 0 && page.steps_begun >= 2; }

namespace {

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace

HeartbeatBoard::HeartbeatBoard(int ranks) : ranks_(ranks) {
  const auto bytes = static_cast<size_t>(ranks) * sizeof(HeartbeatPage);
  descriptor_ = memfd_create("ingot heartbeats", MFD_CLOEXEC);
  void* mapped = MAP_FAILED;
  if (descriptor_ >= 0 && ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0)
    mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    if (descriptor_ >= 0) close(descriptor_);
    throw base::FileError("no memory to share with {} ranks: {}", ranks, std::strerror(error));
  }
  pages_ = static_cast<HeartbeatPage*>(mapped);
}

HeartbeatBoard::~HeartbeatBoard() {
  munmap(pages_, static_cast<size_t>(ranks_) * sizeof(HeartbeatPage));
  close(descriptor_);
}

std::string HeartbeatBoard::path() const { return fmt::format("/proc/{}/fd/{}", getpid(), descriptor_); }

Pulse HeartbeatBoard::pulse(int rank) const {
  const auto& page = pages_[rank];
  Pulse pulse;
  pulse.process = page.process;
  pulse.step = page.step;
  pulse.is_settled = is_settled(page);
  pulse.age_s = static_cast<double>(std::max<int64_t>(0, now_ns() - page.beat_ns)) / 1e9;
  pulse.longest_gap_s = static_cast<double>(page.longest_gap_ns) / 1e9;
  pulse.is_waiting = page.waiting > 0;
  pulse.operation = page.operation.read();
  pulse.run_directory = page.run_directory.read();
  return pulse;
}

void HeartbeatBoard::clear() { std::memset(static_cast<void*>(pages_), 0, static_cast<size_t>(ranks_) * sizeof(HeartbeatPage)); }

Heartbeat::Heartbeat() : page_(new HeartbeatPage{}) {}

Heartbeat::Heartbeat(const std::string& board, int local_rank) {
  if (!board.empty()) {
    const int descriptor = open(board.c_str(), O_RDWR | O_CLOEXEC);
    struct stat facts {};
    const auto needed = (static_cast<size_t>(local_rank) + 1) * sizeof(HeartbeatPage);
    if (descriptor >= 0 && fstat(descriptor, &facts) == 0 && static_cast<size_t>(facts.st_size) >= needed) {
      void* const mapped = mmap(nullptr, needed, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
      if (mapped != MAP_FAILED) mapped_ = mapped, mapped_bytes_ = needed, page_ = static_cast<HeartbeatPage*>(mapped) + local_rank;
    }
    if (!page_)
      base::log_warning(
          "INGOT_HEARTBEATS names {}, which is no board with room for rank {} of this machine: its launcher cannot tell when this rank "
          "hangs",
          board, local_rank);
    if (descriptor >= 0) close(descriptor);
  }
  if (!page_) page_ = new HeartbeatPage{};
  page_->process = getpid();
  beat();
}

Heartbeat::~Heartbeat() {
  if (mapped_) munmap(mapped_, mapped_bytes_);
  else delete page_;
}

Heartbeat::Heartbeat(Heartbeat&& other) noexcept
    : page_(std::exchange(other.page_, nullptr)),
      mapped_(std::exchange(other.mapped_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

Heartbeat& Heartbeat::operator=(Heartbeat&& other) noexcept {
  std::swap(page_, other.page_);
  std::swap(mapped_, other.mapped_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  return *this;
}

void Heartbeat::beat() {
  const int64_t now = now_ns(), before = page_->beat_ns.exchange(now);
  if (page_->step == 0) return;
  int64_t longest = page_->longest_gap_ns;
  while (now - before > longest && !page_->longest_gap_ns.compare_exchange_weak(longest, now - before)) {
  }
}

void Heartbeat::set_step(int64_t step) {
  beat();
  page_->step = step;
  if (step > 0) ++page_->steps_begun;
}

void Heartbeat::set_operation(std::string_view what) {
  page_->operation.write(what);
  beat();
}

void Heartbeat::set_run_directory(std::string_view path) {
  if (path.size() <= 3000) page_->run_directory.write(path);
}

Heartbeat::Waiting::Waiting(Heartbeat& heartbeat) : heartbeat_(heartbeat) { ++heartbeat_.page_->waiting; }
Heartbeat::Waiting::~Waiting() {
  --heartbeat_.page_->waiting;
  heartbeat_.beat();
}

}  // namespace ingot::comm
