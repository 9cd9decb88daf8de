// What the ranks of a machine do right now, in memory that their launcher reads: also while a rank hangs, is stopped, or is dead.
//
// The launcher makes a HeartbeatBoard and hands its path on (INGOT_HEARTBEATS). A rank's Heartbeat beats at every operation between ranks,
// at every step and wherever else work is known to go on. A beat costs a clock and some stores.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::comm {

/// As a launcher sees a rank. Times are of CLOCK_MONOTONIC, which stands still while the machine sleeps.
struct Pulse {
  int64_t process = 0;        // 0: it has not come so far
  int64_t step = 0;           // under way; 0: none
  bool is_settled = false;    // it is in a step that is not the first since its start, which takes longer
  double age_s = 0;           // since the last beat
  double longest_gap_s = 0;   // between two beats within steps; 0: not known
  bool is_waiting = false;    // for other ranks
  std::string operation;      // the last one that it began: "all_reduce of 8 B Long on axis data (ranks [0, 1]), step 3"
  int message_peer = -1;      // of the world: who sends or receives it, where that operation is a message
  int64_t role = 0;           // ranks of one role have the same to do: those of a pipeline stage
  std::string run_directory;  // of what it trains; "" without
};

/// What a step took of a rank's own time, and of time in which it stood still.
struct StepTimes {
  int64_t step = 0;
  double own_s = 0, waited_s = 0, data_s = 0;  // computing; waiting for other ranks; waiting for the batch
};

/// A collective that a rank has begun. Ranks of one role begin the same ones in the same order.
struct BegunOperation {
  int64_t period = 0, index = 0;  // the how manieth of those between two set_step(), which are counted
  int64_t step = 0;
  uint64_t identity = 0;  // equal for equal collectives on an axis of one name
  std::string what;       // "all_reduce of 8 B Long on axis data"
};

struct HeartbeatPage;

class HeartbeatBoard {
 public:
  /// Of `ranks` ranks. Throws FileError.
  explicit HeartbeatBoard(int ranks);
  ~HeartbeatBoard();
  HeartbeatBoard(const HeartbeatBoard&) = delete;

  /// For processes of the same user while this one lives.
  std::string path() const;
  Pulse pulse(int rank) const;
  /// Of its last steps that have ended, at most kStepsKept, oldest first.
  std::vector<StepTimes> steps(int rank) const;
  /// The last collectives that it began, at most kOperationsKept, oldest first.
  std::vector<BegunOperation> operations(int rank) const;
  static constexpr int kStepsKept = 32, kOperationsKept = 64;
  /// Before ranks are started again.
  void clear();

 private:
  int descriptor_, ranks_;
  HeartbeatPage* pages_;
};

/// Any thread may call any function.
class Heartbeat {
 public:
  /// In memory of its own: nobody sees it.
  Heartbeat();
  /// On a launcher's board; in memory of its own when there is none ("") or it cannot be had, which a warning says.
  Heartbeat(const std::string& board, int local_rank);
  ~Heartbeat();
  Heartbeat(Heartbeat&& other) noexcept;
  Heartbeat& operator=(Heartbeat&& other) noexcept;

  void beat();
  /// `step` begins; 0: something that takes as long as it takes.
  void set_step(int64_t step);
  /// This thread, which makes the steps, has waited for a batch.
  void add_data(double seconds);
  /// `what` begins.
  void set_operation(std::string_view what);
  /// `what` begins, a message from or to this rank of the world.
  void set_message(std::string_view what, int peer);
  /// `what` begins, a collective with this identity.
  void set_collective(std::string_view what, uint64_t identity);
  void set_run_directory(std::string_view path);
  void set_role(int64_t role);

  /// A thread waits for other ranks while it lives.
  class Waiting {
   public:
    explicit Waiting(Heartbeat& heartbeat);
    ~Waiting();
    Waiting(const Waiting&) = delete;

   private:
    Heartbeat& heartbeat_;
    int64_t since_ns_;
  };

 private:
  HeartbeatPage* page_ = nullptr;
  void* mapped_ = nullptr;  // null: page_ is this object's own
  std::size_t mapped_bytes_ = 0;
};

}  // namespace ingot::comm
