// Threads that work on one pass together and wait for one another without the kernel's help: between the steps of a token there are a few
// microseconds, which waking a thread would cost, too.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace ingot::models::decode {

class Team {
 public:
  /// The calling thread is one of `workers`.
  explicit Team(int workers);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int workers() const { return workers_; }
  /// body(worker) on all of them at once; returns when all have. Bodies do not throw. One caller at a time.
  void run(const std::function<void(int worker)>& body);
  /// Within run: returns when all workers are there.
  void wait_for_all();

 private:
  void work(int worker);

  const int workers_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* body_ = nullptr;
  std::atomic<int> runs_ = 0;  // begun; the threads wait for it to change
  std::atomic<bool> is_ending_ = false;
  alignas(64) std::atomic<int> arrived_ = 0;
  alignas(64) std::atomic<int> meetings_ = 0;
};

}  // namespace ingot::models::decode
