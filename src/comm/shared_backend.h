// Collectives of ranks that share memory: threads copy straight out of each other's tensors, processes of one machine pass
// chunks through a shared mapping. An all_reduce is a reduce_scatter and an all_gather: each element is added by one rank, in
// the order of the ranks, and read by the others, so no byte moves twice and all ranks hold the same bits.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "comm/backend.h"
#include "comm/segment.h"
#include "comm/serial_executor.h"

namespace ingot::comm {

/// A slower wire, for tests of overlap: a collective ends no sooner than this long after it began, a message leaves so much later.
struct ArtificialDelay {
  double latency_s = 0, bytes_per_s = 0;  // 0: none
  bool is_on() const { return latency_s > 0 || bytes_per_s > 0; }
  std::chrono::duration<double> of(int64_t bytes) const {
    return std::chrono::duration<double>(latency_s + (bytes_per_s > 0 ? static_cast<double>(bytes) / bytes_per_s : 0));
  }
  /// Around an operation of `traffic`: before it, and after it with the time at which it began.
  void hold_back(const Operation& operation, const Traffic& traffic) const {
    if (is_on() && operation.kind == Kind::send) std::this_thread::sleep_for(of(traffic.sent_bytes));
  }
  void hold_on(const Operation& operation, const Traffic& traffic, Clock::time_point began) const {
    if (is_on() && operation.kind != Kind::send && operation.kind != Kind::receive)
      std::this_thread::sleep_until(began + std::chrono::duration_cast<Clock::duration>(of(traffic.received_bytes)));
  }
};

class SharedBackend : public Backend {
 public:
  /// `members`: what messages call the ranks. `may_spin`: every rank has a core of its own.
  SharedBackend(std::shared_ptr<Segment> segment, int rank, std::vector<int> members, std::chrono::duration<double> timeout,
                ArtificialDelay delay, bool may_spin);
  ~SharedBackend() override;
  std::string name() const override { return segment_->has_outboxes() ? "shared_memory" : "threads"; }
  Work start(Operation operation, bool blocking) override;

 private:
  // One pass through the rendezvous: everyone has published for round `round_` when it returns.
  void meet(Deadline deadline);
  void begin(const Operation& operation, Deadline deadline);
  void collective(const Operation& operation);
  void run_direct(const Operation& operation, Deadline deadline);
  void run_staged(const Operation& operation, Deadline deadline);
  void run_small_all_reduce(const Operation& operation, Deadline deadline);
  void staged_all_reduce(const Operation& operation, Deadline deadline);
  void staged_pieces(const Operation& operation, Deadline deadline);
  void staged_spread(const Operation& operation, Deadline deadline);
  void staged_reduce(const Operation& operation, Deadline deadline);
  void send(const Operation& operation);
  void receive(const Operation& operation);
  SerialExecutor& executor_to(int peer, bool is_send);

  void state(const Operation& operation);
  void compare_signatures(const Operation& operation) const;
  [[noreturn]] void report_divergence() const;
  bool has_gone(int rank) const;
  /// ": " and what broke the group first, once something did.
  std::string cause() const;
  [[noreturn]] void report_missing(const std::vector<int>& missing, bool is_timeout);
  std::string name_of_rank(int rank) const;
  Deadline deadline() const { return Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout_); }

  std::shared_ptr<Segment> segment_;
  int rank_, size_;
  std::vector<int> members_;
  std::chrono::duration<double> timeout_;
  ArtificialDelay delay_;
  bool may_spin_;
  std::vector<int> process_handles_;  // pidfd of each rank; -1: unknown
  uint32_t round_ = 0;                // rendezvous so far; its parity chooses the outbox
  std::atomic<bool> is_broken_{false}, is_closing_{false};
  mutable std::mutex cause_mutex_;
  std::string cause_;
  std::unique_ptr<SerialExecutor> collectives_ = std::make_unique<SerialExecutor>();
  std::map<std::pair<int, bool>, std::unique_ptr<SerialExecutor>> messages_;  // by (peer, is it a send)
};

}  // namespace ingot::comm
