#include "train/metrics/step_queue.h"

#include <utility>

namespace ingot::train {

void StepQueue::push(StepScalars step) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= most_waiting_) {
      drop(1);
      return;
    }
    waiting_.push_back(std::move(step));
  }
  changed_.notify_one();
}

std::vector<StepScalars> StepQueue::take(size_t most_scalars) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_closed_ || !waiting_.empty(); });
  std::vector<StepScalars> taken;
  for (size_t scalars = 0; !waiting_.empty(); waiting_.pop_front()) {
    scalars += waiting_.front().scalars.size();
    if (!taken.empty() && scalars > most_scalars) break;
    taken.push_back(std::move(waiting_.front()));
  }
  return taken;
}

void StepQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
}

}  // namespace ingot::train
