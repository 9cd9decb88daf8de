// Tasks of uneven length over at::parallel_for's threads: each thread takes the next task when it has done one. Results
// must not depend on which thread runs a task; then they do not depend on the number of threads either.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

namespace ingot::kernels::cpu {

/// While it lives, this thread's work has one worker, as inside a parallel region: for counting what a task there takes.
class AsInsideATask {
 public:
  AsInsideATask() { lives() = true; }
  ~AsInsideATask() { lives() = false; }
  AsInsideATask(const AsInsideATask&) = delete;
  AsInsideATask& operator=(const AsInsideATask&) = delete;
  static bool& lives() {
    thread_local bool lives = false;
    return lives;
  }
};

/// How many workers there are: 1 inside a parallel region.
inline int64_t available_workers() { return at::in_parallel_region() || AsInsideATask::lives() ? 1 : std::max(1, at::get_num_threads()); }

/// How many of them parallel_tasks() uses for `count` tasks.
inline int64_t workers_for(int64_t count) { return std::clamp<int64_t>(available_workers(), 1, std::max<int64_t>(count, 1)); }

/// Calls body(task, worker) for every task in [0, count), with worker in [0, workers_for(count)); tasks of one worker run one
/// after another, so that per-worker scratch is safe. Tasks start in order.
template <class Body>
void parallel_tasks(int64_t count, const Body& body) {
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, workers_for(count), 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker)
      for (int64_t task = next++; task < count; task = next++) body(task, worker);
  });
}

}  // namespace ingot::kernels::cpu
