// Memory that the ranks of one group share: on the heap for threads of one process, a mapping without a name (memfd) for
// processes of one machine. It holds a slot per rank (where it says what it is doing), a channel per ordered pair of ranks
// for messages, and, for processes, outboxes: a process cannot read another's tensors, so they pass through here in chunks.
// The last owner frees it; a killed process leaves nothing behind.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/event_counter.h"

namespace ingot::comm {

/// What a rank says of the collective that it entered; all ranks must say the same.
struct Signature {
  uint64_t sequence = 0;
  int64_t step = 0, bytes = 0, largest_piece_bytes = 0;
  int32_t kind = 0, dtype = 0, reduction = 0, peer = -1;
};

constexpr int64_t kInlineBytes = 8192;

/// One rank's place. Everything but the event counters is written by its rank before it advances one, and read by the others after.
struct alignas(64) RankSlot {
  EventCounter arrived;          // rounds this rank has come to
  std::atomic<int32_t> left{0};  // 1: the rank ended in order, 2: it failed
  pid_t process = 0;
  Signature signature;
  const void* exposed = nullptr;  // threads: where its input lies
  alignas(64) char small[2][kInlineBytes];
};

constexpr int kChannelSlots = 4;

struct Slot {
  const void* exposed = nullptr;         // threads
  int64_t bytes = 0, message_bytes = 0;  // of this part, of the whole message
  int32_t dtype = 0;
};

struct alignas(64) Channel {
  EventCounter written;
  alignas(64) EventCounter read;
  Slot slots[kChannelSlots];
};

class Segment {
 public:
  /// For `size` threads.
  static std::shared_ptr<Segment> on_heap(int size);
  /// For `size` processes: the first makes it, the others map what `address()` of the first says. Throws CommError.
  static std::shared_ptr<Segment> create_shared(int size);
  static std::shared_ptr<Segment> map_shared(int size, const std::string& address);
  ~Segment();
  Segment(const Segment&) = delete;

  /// What a process comes to hold of a group's mapping when it takes part in collectives, and for each rank that it sends
  /// messages to or has them from. Pages that nobody writes cost nothing.
  static int64_t collective_bytes(int size);
  static int64_t channel_bytes();

  /// Where another process of this user finds the mapping, while this process lives and keeps it open.
  std::string address() const;
  /// Every process has mapped it.
  void close_descriptor();
  /// Memory that other threads may still read after their peer gave an operation up; it stays as long as the segment.
  void keep(std::shared_ptr<const void> memory);

  bool has_outboxes() const { return outbox_bytes_ > 0; }
  int size() const { return size_; }
  RankSlot& slot(int rank) const;
  Channel& channel(int from, int to) const;
  int64_t* counts(int rank) const;  // [size]: elements to each rank, of an all_to_all
  /// Two halves in turn, so that one is filled while the other is read.
  char* outbox(int rank, int half) const;
  int64_t outbox_bytes() const { return outbox_bytes_; }
  char* slot(int from, int to, int index) const;
  int64_t slot_bytes() const { return slot_bytes_; }

 private:
  Segment(int size, bool has_outboxes);
  void lay_out();
  void map(int descriptor);
  void construct();

  int size_;
  int64_t outbox_bytes_ = 0, slot_bytes_ = 0;
  size_t channels_at_ = 0, counts_at_ = 0, outboxes_at_ = 0, slots_at_ = 0, total_ = 0;
  std::mutex keeping_;
  std::vector<std::shared_ptr<const void>> kept_;
  char* base_ = nullptr;
  int descriptor_ = -1;
  bool is_mapped_ = false;
};

}  // namespace ingot::comm
