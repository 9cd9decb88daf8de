// Tasks of uneven length over at::parallel_for's threads: each thread takes the next task when it has done one. Results
// must not depend on which thread runs a task; then they do not depend on the number of threads either.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

namespace ingot::kernels::cpu {

/// How many workers parallel_tasks() uses for `count` tasks: 1 inside a parallel region.
inline int64_t workers_for(int64_t count) {
  return at::in_parallel_region() ? 1 : std::clamp<int64_t>(at::get_num_threads(), 1, std::max<int64_t>(count, 1));
}

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
