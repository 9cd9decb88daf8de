#include "comm/heartbeat.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/shared_pages.h"

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

// Of a step that has ended. A reader that finds another step behind the numbers than before them has met the writer.
struct StepSlot {
  std::atomic<int64_t> step, own_ns, waited_ns, data_ns;
};

// Of a collective, read like a StepSlot.
struct OperationSlot {
  std::atomic<int64_t> number, period, index, step;
  std::atomic<uint64_t> identity;
  std::atomic<char> what[64];
};

// Memory of zeros is a rank that has not come.
struct alignas(4096) HeartbeatPage {
  std::atomic<int64_t> process, beat_ns, longest_gap_ns, step, steps_begun, waiting, role, message_peer;  // the last one: plus 1
  std::atomic<int64_t> begun_ns, waited_ns, data_ns;                                                      // of the step under way
  std::atomic<int64_t> period, collectives, collectives_before;                                           // so far; before this period
  StepSlot steps[HeartbeatBoard::kStepsKept];                                                             // by number
  OperationSlot operations[HeartbeatBoard::kOperationsKept];                                              // by number
  SharedText<512> operation;
  SharedText<3000> run_directory;
};
static_assert(sizeof(HeartbeatPage) == 16384);

static bool is_settled(const HeartbeatPage& page) { return page.step > 0 && page.steps_begun >= 2; }

namespace {

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

}  // namespace

HeartbeatBoard::HeartbeatBoard(int ranks) : ranks_(ranks) {
  const auto shared = base::make_shared_pages("ingot heartbeats", static_cast<size_t>(ranks) * sizeof(HeartbeatPage));
  descriptor_ = shared.descriptor;
  pages_ = static_cast<HeartbeatPage*>(shared.memory);
}

HeartbeatBoard::~HeartbeatBoard() {
  munmap(pages_, static_cast<size_t>(ranks_) * sizeof(HeartbeatPage));
  close(descriptor_);
}

std::string HeartbeatBoard::path() const { return base::path_of(descriptor_); }

Pulse HeartbeatBoard::pulse(int rank) const {
  const auto& page = pages_[rank];
  Pulse pulse;
  pulse.process = page.process;
  pulse.step = page.step;
  pulse.is_settled = is_settled(page);
  pulse.age_s = static_cast<double>(std::max<int64_t>(0, now_ns() - page.beat_ns)) / 1e9;
  pulse.longest_gap_s = static_cast<double>(page.longest_gap_ns) / 1e9;
  pulse.is_waiting = page.waiting > 0;
  pulse.message_peer = static_cast<int>(page.message_peer) - 1;
  pulse.role = page.role;
  pulse.operation = page.operation.read();
  pulse.run_directory = page.run_directory.read();
  return pulse;
}

std::vector<StepTimes> HeartbeatBoard::steps(int rank) const {
  const auto& page = pages_[rank];
  std::vector<StepTimes> times;
  for (const auto& slot : page.steps) {
    const int64_t step = slot.step.load(std::memory_order_acquire);
    const StepTimes read{step, static_cast<double>(slot.own_ns) / 1e9, static_cast<double>(slot.waited_ns) / 1e9,
                         static_cast<double>(slot.data_ns) / 1e9};
    std::atomic_thread_fence(std::memory_order_acquire);
    if (step > 0 && slot.step.load(std::memory_order_relaxed) == step) times.push_back(read);
  }
  std::sort(times.begin(), times.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return times;
}

std::vector<BegunOperation> HeartbeatBoard::operations(int rank) const {
  std::vector<std::pair<int64_t, BegunOperation>> found;
  for (const auto& slot : pages_[rank].operations) {
    const int64_t number = slot.number.load(std::memory_order_acquire);
    BegunOperation read{.period = slot.period, .index = slot.index, .step = slot.step, .identity = slot.identity, .what = {}};
    for (const auto& letter : slot.what)
      if (const char c = letter.load(std::memory_order_relaxed)) read.what += c;
      else break;
    std::atomic_thread_fence(std::memory_order_acquire);
    if (number > 0 && slot.number.load(std::memory_order_relaxed) == number) found.emplace_back(number, std::move(read));
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<BegunOperation> operations;
  for (auto& [number, operation] : found) operations.push_back(std::move(operation));
  return operations;
}

void HeartbeatBoard::clear() { std::memset(static_cast<void*>(pages_), 0, static_cast<size_t>(ranks_) * sizeof(HeartbeatPage)); }

Heartbeat::Heartbeat() : page_(new HeartbeatPage{}) {}

Heartbeat::Heartbeat(const std::string& board, int local_rank) {
  if (!board.empty()) {
    const auto needed = (static_cast<size_t>(local_rank) + 1) * sizeof(HeartbeatPage);
    if (void* const mapped = base::map_shared_pages(board, needed))
      mapped_ = mapped, mapped_bytes_ = needed, page_ = static_cast<HeartbeatPage*>(mapped) + local_rank;
    if (!page_)
      base::log_warning(
          "INGOT_HEARTBEATS names {}, which is no board with room for rank {} of this machine: its launcher cannot tell when this rank "
          "hangs",
          board, local_rank);
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
  const int64_t now = now_ns(), ended = page_->step, waited = page_->waited_ns.exchange(0), data = page_->data_ns.exchange(0);
  if (ended > 0) {
    auto& slot = page_->steps[ended % HeartbeatBoard::kStepsKept];
    slot.step.store(0, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_release);
    slot.own_ns = std::max<int64_t>(0, now - page_->begun_ns - waited - data);
    slot.waited_ns = waited, slot.data_ns = data;
    slot.step.store(ended, std::memory_order_release);
  }
  page_->begun_ns = now;
  page_->step = step;
  ++page_->period;
  page_->collectives_before = page_->collectives.load();
  if (step > 0) ++page_->steps_begun;
}

void Heartbeat::add_data(double seconds) {
  page_->data_ns += static_cast<int64_t>(seconds * 1e9);
  beat();
}

void Heartbeat::set_operation(std::string_view what) {
  page_->message_peer = 0;
  page_->operation.write(what);
  beat();
}

void Heartbeat::set_message(std::string_view what, int peer) {
  set_operation(what);
  page_->message_peer = peer + 1;
}

void Heartbeat::set_collective(std::string_view what, uint64_t identity) {
  const int64_t number = ++page_->collectives;
  auto& slot = page_->operations[number % HeartbeatBoard::kOperationsKept];
  slot.number.store(0, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_release);
  constexpr auto relaxed = std::memory_order_relaxed;
  slot.period.store(page_->period.load(relaxed), relaxed);
  slot.index.store(number - page_->collectives_before.load(relaxed), relaxed);
  slot.step.store(page_->step.load(relaxed), relaxed);
  slot.identity.store(identity, relaxed);
  const auto kept = what.substr(0, what.find(" (ranks"));
  for (size_t i = 0; i < std::size(slot.what); ++i) slot.what[i].store(i < kept.size() ? kept[i] : '\0', relaxed);
  slot.number.store(number, std::memory_order_release);
  set_operation(what);
}

void Heartbeat::set_run_directory(std::string_view path) {
  if (path.size() <= 3000) page_->run_directory.write(path);
}

void Heartbeat::set_role(int64_t role) { page_->role = role; }

Heartbeat::Waiting::Waiting(Heartbeat& heartbeat) : heartbeat_(heartbeat), since_ns_(now_ns()) { ++heartbeat_.page_->waiting; }
// Of threads that wait at once the last one counts: together they are one standstill.
Heartbeat::Waiting::~Waiting() {
  if (--heartbeat_.page_->waiting == 0) heartbeat_.page_->waited_ns += now_ns() - since_ns_;
  heartbeat_.beat();
}

}  // namespace ingot::comm
