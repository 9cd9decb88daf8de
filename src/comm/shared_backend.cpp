#include "comm/shared_backend.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "comm/reduce.h"

namespace ingot::comm {
namespace {

using base::CommError;

const char* input_of(const Operation& o) { return static_cast<const char*>(o.input.const_data_ptr()); }
char* output_of(const Operation& o) { return static_cast<char*>(o.output.mutable_data_ptr()); }

void copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<size_t>(bytes));
}

// [begin, end) of rank r's share when `count` is dealt out as evenly as whole elements allow.
int64_t share_begin(int64_t count, int rank, int size) { return count * rank / size; }

std::vector<int64_t> offsets_of(const int64_t* counts, int size) {
  std::vector<int64_t> offsets(static_cast<size_t>(size) + 1, 0);
  for (int r = 0; r < size; ++r) offsets[static_cast<size_t>(r) + 1] = offsets[static_cast<size_t>(r)] + counts[r];
  return offsets;
}

}  // namespace

SharedBackend::SharedBackend(std::shared_ptr<Segment> segment, int rank, std::vector<int> members, std::chrono::duration<double> timeout,
                             ArtificialDelay delay, bool may_spin)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(segment_->size()),
      members_(std::move(members)),
      timeout_(timeout),
      delay_(delay),
      may_spin_(may_spin),
      process_handles_(static_cast<size_t>(size_), -1) {
  segment_->slot(rank_).process = getpid();
  meet(deadline());  // now all process numbers are known
  if (!segment_->has_outboxes()) return;
  segment_->close_descriptor();
#ifdef SYS_pidfd_open
  for (int r = 0; r < size_; ++r)
    if (r != rank_) process_handles_[static_cast<size_t>(r)] = static_cast<int>(syscall(SYS_pidfd_open, segment_->slot(r).process, 0));
#endif
}

SharedBackend::~SharedBackend() {
  is_closing_ = true;
  segment_->slot(rank_).left.store(is_broken_ ? 2 : 1);
  messages_.clear();  // lanes end before the handles that they use
  collectives_.reset();
  for (const int handle : process_handles_)
    if (handle >= 0) close(handle);
}

std::string SharedBackend::name_of_rank(int rank) const {
  const auto process = segment_->has_outboxes() ? fmt::format(" (process {})", segment_->slot(rank).process) : std::string();
  return fmt::format("rank {}{}", members_[static_cast<size_t>(rank)], process);
}

bool SharedBackend::has_gone(int rank) const {
  if (rank == rank_) return false;
  if (segment_->slot(rank).left.load() != 0) return true;
  const int handle = process_handles_[static_cast<size_t>(rank)];
  pollfd query{handle, POLLIN, 0};
  return handle >= 0 && poll(&query, 1, 0) == 1;  // readable once the process has ended
}

std::string SharedBackend::cause() const {
  const std::lock_guard lock(cause_mutex_);
  return cause_.empty() ? "" : ": " + cause_;
}

void SharedBackend::report_missing(const std::vector<int>& missing, bool is_timeout) {
  std::vector<std::string> names;
  for (const int rank : missing) {
    const int left = segment_->slot(rank).left.load();
    const char* how = left == 1 ? " has left the group" : left == 2 ? " has failed" : has_gone(rank) ? " has died" : " did not come";
    names.push_back(name_of_rank(rank) + how);
  }
  const auto text = fmt::format("{}{}", fmt::join(names, ", "),
                                is_timeout ? fmt::format(" within {:g} s (resilience.comm_timeout_s)", timeout_.count()) : "");
  {
    const std::lock_guard lock(cause_mutex_);
    if (cause_.empty()) cause_ = text;
  }
  is_broken_ = true;
  segment_->slot(rank_).left.store(2);
  throw CommError("{}", text);
}

void SharedBackend::meet(Deadline deadline) {
  ++round_;
  segment_->slot(rank_).arrived.advance();
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    auto& counter = segment_->slot(r).arrived;
    if (has_reached(counter.now(), round_)) continue;
    // Anyone who is gone and has not come ends the wait, not only the rank that is waited for.
    const auto someone_is_gone = [&] {
      if (is_closing_) return true;
      for (int other = 0; other < size_; ++other)
        if (!has_reached(segment_->slot(other).arrived.now(), round_) && has_gone(other)) return true;
      return false;
    };
    if (wait_for(counter, round_, deadline, may_spin_, someone_is_gone)) continue;
    std::vector<int> gone, late;
    for (int other = 0; other < size_; ++other) {
      if (has_reached(segment_->slot(other).arrived.now(), round_)) continue;
      late.push_back(other);
      if (has_gone(other)) gone.push_back(other);
    }
    if (late.empty()) continue;  // it came at the last moment
    if (is_closing_) throw CommError("this rank closed the group");
    report_missing(gone.empty() ? late : gone, gone.empty());
  }
}

void SharedBackend::state(const Operation& o) {
  auto& slot = segment_->slot(rank_);
  int64_t largest = 0;
  if (o.kind == Kind::all_to_all) {
    std::copy(o.input_counts.begin(), o.input_counts.end(), segment_->counts(rank_));
    largest = *std::max_element(o.input_counts.begin(), o.input_counts.end()) * o.element_bytes();
  }
  slot.signature = {.sequence = o.sequence,
                    .step = o.step,
                    .bytes = o.kind == Kind::all_to_all ? 0 : o.bytes(),
                    .largest_piece_bytes = largest,
                    .kind = static_cast<int32_t>(o.kind),
                    .dtype = static_cast<int32_t>(o.dtype()),
                    .reduction = static_cast<int32_t>(o.reduction),
                    .peer = o.peer};
  slot.exposed = o.input.defined() ? o.input.const_data_ptr() : nullptr;
}

// Of ranks that do not agree those that are fewer went astray, and every rank says so; of two, either may have.
void SharedBackend::report_divergence() const {
  std::map<std::string, std::vector<std::string>> ranks_in;
  for (int r = 0; r < size_; ++r) {
    const auto& s = segment_->slot(r).signature;
    constexpr std::array reductions{"sum", "max", "min"};  // as in Reduction
    const auto what = fmt::format(
        "{} of {} bytes (operation {} of the group, step {}, {}, {}, root {})", comm::name_of(static_cast<Kind>(s.kind)), s.bytes,
        s.sequence, s.step, at::toString(static_cast<at::ScalarType>(s.dtype)), reductions.at(static_cast<size_t>(s.reduction)), s.peer);
    ranks_in[what].push_back(name_of_rank(r));
  }
  std::vector<std::pair<std::string, std::vector<std::string>>> fewest_first(ranks_in.begin(), ranks_in.end());
  std::stable_sort(fewest_first.begin(), fewest_first.end(),
                   [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::vector<std::string> parts;
  for (const auto& [what, ranks] : fewest_first)
    parts.push_back(fmt::format("{} {} in {}", fmt::join(ranks, ", "), ranks.size() == 1 ? "is" : "are", what));
  throw CommError("{}", fmt::join(parts, "; "));
}

void SharedBackend::compare_signatures(const Operation& o) const {
  const auto& own = segment_->slot(rank_).signature;
  for (int r = 0; r < size_; ++r) {
    const auto& other = segment_->slot(r).signature;
    if (other.sequence != own.sequence || other.step != own.step || other.kind != own.kind || other.bytes != own.bytes ||
        other.dtype != own.dtype || other.reduction != own.reduction || other.peer != own.peer)
      report_divergence();
    if (o.kind == Kind::all_to_all && segment_->counts(r)[rank_] != o.output_counts[static_cast<size_t>(r)])
      throw CommError("{} sends {} elements where this rank expects {}", name_of_rank(r), segment_->counts(r)[rank_],
                      o.output_counts[static_cast<size_t>(r)]);
  }
}

Work SharedBackend::start(Operation operation, bool blocking) {
  const bool is_message = operation.kind == Kind::send || operation.kind == Kind::receive;
  SerialExecutor& executor = is_message ? executor_to(operation.peer, operation.kind == Kind::send) : *collectives_;
  return executor.run(
      [this, o = std::move(operation)] {
        if (is_broken_) throw CommError("the group failed before{}", cause());
        const auto began = Clock::now();
        const auto traffic = traffic_of(o, rank_, size_);
        delay_.hold_back(o, traffic);
        try {
          o.kind == Kind::send ? send(o) : o.kind == Kind::receive ? receive(o) : collective(o);
        } catch (const CommError&) {
          is_broken_ = true;
          if (!segment_->has_outboxes() && o.input.defined()) segment_->keep(std::make_shared<at::Tensor>(o.input));
          segment_->slot(rank_).left.store(2);
          throw;
        }
        delay_.hold_on(o, traffic, began);
      },
      blocking);
}

void SharedBackend::collective(const Operation& o) {
  const auto until = deadline();
  state(o);
  if (o.kind == Kind::barrier) {
    meet(until);
    compare_signatures(o);
    return meet(until);  // nobody may write its next signature while another still reads
  }
  if (o.kind == Kind::all_reduce && o.bytes() <= kInlineBytes) return run_small_all_reduce(o, until);
  segment_->has_outboxes() ? run_staged(o, until) : run_direct(o, until);
}

// Every rank reads everything: one rendezvous to publish and one before the slots may be written again.
void SharedBackend::run_small_all_reduce(const Operation& o, Deadline until) {
  std::vector<const void*> sources;
  for (int r = 0; r < size_; ++r) sources.push_back(segment_->slot(r).small[0]);
  copy(segment_->slot(rank_).small[0], input_of(o), o.bytes());
  meet(until);
  compare_signatures(o);
  reduce(output_of(o), sources, o.input.numel(), o.dtype(), o.reduction);
  meet(until);
}

// Threads: tensors are read where they lie, between the rendezvous before and the one after.
void SharedBackend::run_direct(const Operation& o, Deadline until) {
  const int64_t element = o.element_bytes();
  const auto input_at = [&](int r) { return static_cast<const char*>(segment_->slot(r).exposed); };
  meet(until);
  compare_signatures(o);
  std::vector<const void*> sources(static_cast<size_t>(size_));
  switch (o.kind) {
    case Kind::all_reduce: {
      // In place: only the owner of a slice reads it before the middle rendezvous, and only it writes it.
      const int64_t n = o.input.numel(), begin = share_begin(n, rank_, size_), end = share_begin(n, rank_ + 1, size_);
      for (int r = 0; r < size_; ++r) sources[static_cast<size_t>(r)] = input_at(r) + begin * element;
      reduce(output_of(o) + begin * element, sources, end - begin, o.dtype(), o.reduction);
      meet(until);
      for (int r = 0; r < size_; ++r) {
        const int64_t from = share_begin(n, r, size_), to = share_begin(n, r + 1, size_);
        if (r != rank_) copy(output_of(o) + from * element, input_at(r) + from * element, (to - from) * element);
      }
      break;
    }
    case Kind::reduce_scatter:
      for (int r = 0; r < size_; ++r) sources[static_cast<size_t>(r)] = input_at(r) + rank_ * o.output.numel() * element;
      reduce(output_of(o), sources, o.output.numel(), o.dtype(), o.reduction);
      break;
    case Kind::all_gather:
      for (int r = 0; r < size_; ++r) copy(output_of(o) + r * o.input.numel() * element, input_at(r), o.input.numel() * element);
      break;
    case Kind::broadcast:
      if (rank_ != o.peer) copy(output_of(o), input_at(o.peer), o.bytes());
      break;
    case Kind::reduce:
      for (int r = 0; r < size_; ++r) sources[static_cast<size_t>(r)] = input_at(r);
      if (rank_ == o.peer) reduce(output_of(o), sources, o.input.numel(), o.dtype(), o.reduction);
      break;
    case Kind::all_to_all: {
      int64_t at = 0;
      for (int r = 0; r < size_; ++r) {
        const int64_t count = o.output_counts[static_cast<size_t>(r)];
        copy(output_of(o) + at * element, input_at(r) + offsets_of(segment_->counts(r), size_)[static_cast<size_t>(rank_)] * element,
             count * element);
        at += count;
      }
      break;
    }
    default: break;
  }
  meet(until);
}

void SharedBackend::run_staged(const Operation& o, Deadline until) {
  switch (o.kind) {
    case Kind::all_reduce: return staged_all_reduce(o, until);
    case Kind::reduce_scatter:
    case Kind::all_to_all: return staged_pieces(o, until);
    case Kind::reduce: return staged_reduce(o, until);
    default: return staged_spread(o, until);
  }
}

// Half a rendezvous apart, outboxes alternate: when a rank fills one again, everyone has met once more after reading it.
void SharedBackend::staged_all_reduce(const Operation& o, Deadline until) {
  const int64_t element = o.element_bytes(), n = o.input.numel(), chunk = segment_->outbox_bytes() / element;
  std::vector<const void*> sources(static_cast<size_t>(size_));
  int half = 0;
  for (int64_t from = 0; from < n; from += chunk, half ^= 1) {
    const int64_t count = std::min(chunk, n - from), begin = share_begin(count, rank_, size_), end = share_begin(count, rank_ + 1, size_);
    char* own = output_of(o) + from * element;
    char* box = segment_->outbox(rank_, half);
    copy(box, own, begin * element);
    copy(box + end * element, own + end * element, (count - end) * element);
    meet(until);
    if (from == 0) compare_signatures(o);
    for (int r = 0; r < size_; ++r) sources[static_cast<size_t>(r)] = (r == rank_ ? own : segment_->outbox(r, half)) + begin * element;
    reduce(own + begin * element, sources, end - begin, o.dtype(), o.reduction);
    copy(box + begin * element, own + begin * element, (end - begin) * element);
    meet(until);
    for (int r = 0; r < size_; ++r) {
      const int64_t first = share_begin(count, r, size_), last = share_begin(count, r + 1, size_);
      if (r != rank_) copy(own + first * element, segment_->outbox(r, half) + first * element, (last - first) * element);
    }
  }
  meet(until);
}

// reduce_scatter and all_to_all: a piece for each rank, of which every round passes a part.
void SharedBackend::staged_pieces(const Operation& o, Deadline until) {
  const int64_t element = o.element_bytes(), part = std::max<int64_t>(1, segment_->outbox_bytes() / size_ / element);
  const bool reduces = o.kind == Kind::reduce_scatter;
  const auto pieces = reduces ? std::vector<int64_t>(static_cast<size_t>(size_), o.output.numel()) : o.input_counts;
  const auto offsets = offsets_of(pieces.data(), size_);
  const auto arrivals = reduces ? std::vector<int64_t>() : offsets_of(o.output_counts.data(), size_);
  std::vector<const void*> sources(static_cast<size_t>(size_));
  int64_t largest = reduces ? o.output.numel() : 0;
  int half = 0;
  for (int64_t from = 0; from == 0 || from < largest; from += part, half ^= 1) {
    char* box = segment_->outbox(rank_, half);
    for (int to = 0; to < size_; ++to) {
      const int64_t count = std::clamp<int64_t>(pieces[static_cast<size_t>(to)] - from, 0, part);
      if (to != rank_) copy(box + to * part * element, input_of(o) + (offsets[static_cast<size_t>(to)] + from) * element, count * element);
    }
    meet(until);
    if (from == 0) {
      compare_signatures(o);
      for (int r = 0; r < size_ && !reduces; ++r) largest = std::max(largest, segment_->slot(r).signature.largest_piece_bytes / element);
    }
    const auto part_of = [&](int r) -> const char* {
      return r == rank_ ? input_of(o) + (offsets[static_cast<size_t>(r)] + from) * element
                        : segment_->outbox(r, half) + rank_ * part * element;
    };
    if (reduces) {
      for (int r = 0; r < size_; ++r) sources[static_cast<size_t>(r)] = part_of(r);
      reduce(output_of(o) + from * element, sources, std::clamp<int64_t>(largest - from, 0, part), o.dtype(), o.reduction);
      continue;
    }
    for (int r = 0; r < size_; ++r) {
      const int64_t count = std::clamp<int64_t>(o.output_counts[static_cast<size_t>(r)] - from, 0, part);
      if (count > 0) copy(output_of(o) + (arrivals[static_cast<size_t>(r)] + from) * element, part_of(r), count * element);
    }
  }
  meet(until);
}

void SharedBackend::staged_reduce(const Operation& o, Deadline until) {
  const int64_t element = o.element_bytes(), n = o.input.numel(), chunk = segment_->outbox_bytes() / element;
  std::vector<const void*> sources(static_cast<size_t>(size_));
  int half = 0;
  for (int64_t from = 0; from == 0 || from < n; from += chunk, half ^= 1) {
    const int64_t count = std::min(chunk, n - from);
    if (rank_ != o.peer) copy(segment_->outbox(rank_, half), input_of(o) + from * element, count * element);
    meet(until);
    if (from == 0) compare_signatures(o);
    if (rank_ != o.peer) continue;
    char* own = output_of(o) + from * element;
    for (int r = 0; r < size_; ++r) sources[static_cast<size_t>(r)] = r == rank_ ? own : segment_->outbox(r, half);
    reduce(own, sources, count, o.dtype(), o.reduction);
  }
  meet(until);
}

// all_gather and broadcast: the same bytes for everyone.
void SharedBackend::staged_spread(const Operation& o, Deadline until) {
  const int64_t bytes = o.input.numel() * o.element_bytes(), chunk = segment_->outbox_bytes();
  const bool gathers = o.kind == Kind::all_gather;
  int half = 0;
  for (int64_t from = 0; from == 0 || from < bytes; from += chunk, half ^= 1) {
    const int64_t count = std::min(chunk, bytes - from);
    if (gathers || rank_ == o.peer) copy(segment_->outbox(rank_, half), input_of(o) + from, count);
    meet(until);
    if (from == 0) compare_signatures(o);
    for (int r = 0; r < size_; ++r) {
      if (gathers) copy(output_of(o) + r * bytes + from, r == rank_ ? input_of(o) + from : segment_->outbox(r, half), count);
      else if (r == o.peer && r != rank_) copy(output_of(o) + from, segment_->outbox(r, half), count);
    }
  }
  meet(until);
}

SerialExecutor& SharedBackend::executor_to(int peer, bool is_send) {
  auto& executor = messages_[{peer, is_send}];
  if (!executor) executor = std::make_unique<SerialExecutor>();
  return *executor;
}

void SharedBackend::send(const Operation& o) {
  auto& channel = segment_->channel(rank_, o.peer);
  const auto until = deadline();
  const auto peer_is_gone = [&] { return is_closing_ || has_gone(o.peer); };
  const bool staged = segment_->has_outboxes();
  const int64_t total = o.bytes(), chunk = staged ? segment_->slot_bytes() : std::max<int64_t>(total, 1);
  uint32_t number = channel.written.now();
  for (int64_t from = 0; from == 0 || from < total; from += chunk) {
    if (!wait_for(channel.read, number - kChannelSlots + 1, until, may_spin_, peer_is_gone)) report_missing({o.peer}, !peer_is_gone());
    const int index = static_cast<int>(number % kChannelSlots);
    const int64_t count = std::min(chunk, total - from);
    auto& slot = channel.slots[index];
    slot = {input_of(o) + from, count, total, static_cast<int32_t>(o.dtype())};
    if (staged) copy(segment_->slot(rank_, o.peer, index), input_of(o) + from, count);
    channel.written.advance();
    ++number;
  }
  // A thread's tensor is read where it lies: it is the receiver's until read.
  if (!staged && !wait_for(channel.read, number, until, may_spin_, peer_is_gone)) report_missing({o.peer}, !peer_is_gone());
}

void SharedBackend::receive(const Operation& o) {
  auto& channel = segment_->channel(o.peer, rank_);
  const auto until = deadline();
  const auto peer_is_gone = [&] { return is_closing_ || has_gone(o.peer); };
  const bool staged = segment_->has_outboxes();
  const int64_t total = o.bytes();
  uint32_t number = channel.read.now();
  int64_t from = 0;
  do {
    if (!wait_for(channel.written, number + 1, until, may_spin_, peer_is_gone) && !has_reached(channel.written.now(), number + 1))
      report_missing({o.peer}, !peer_is_gone());
    const int index = static_cast<int>(number % kChannelSlots);
    const auto slot = channel.slots[index];
    if (slot.message_bytes != total || slot.dtype != static_cast<int32_t>(o.dtype()))
      throw CommError("{} sent {} bytes of {} where {} of {} were expected", name_of_rank(o.peer), slot.message_bytes,
                      at::toString(static_cast<at::ScalarType>(slot.dtype)), total, at::toString(o.dtype()));
    copy(output_of(o) + from, staged ? segment_->slot(o.peer, rank_, index) : slot.exposed, slot.bytes);
    from += slot.bytes;
    channel.read.advance();
    ++number;
  } while (from < total);
}

}  // namespace ingot::comm
