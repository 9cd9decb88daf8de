#include "data/prefetcher.h"

namespace ingot::data {

Prefetcher::Prefetcher(const Loader& loader, int64_t depth, int64_t stride) : loader_(loader), depth_(depth), stride_(stride) {
  if (depth_ > 0) thread_ = std::jthread([this] { run(); });
}

Prefetcher::~Prefetcher() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

Batch Prefetcher::get(int64_t first_sample, int64_t count) {
  if (depth_ == 0) return loader_.batch(first_sample, count);
  std::unique_lock lock(mutex_);
  // Expected: the oldest prepared batch, or the one that the thread is at while none is ready.
  const bool expected = next_ >= 0 && count == count_ && first_sample == (ready_.empty() ? next_ : ready_.front().first);
  if (!expected) {
    next_ = first_sample + stride_;
    count_ = count;
    ++version_;
    ready_.clear();
    changed_.notify_all();
    lock.unlock();
    return loader_.batch(first_sample, count);
  }
  changed_.wait(lock, [&] { return !ready_.empty(); });
  Ready ready = std::move(ready_.front());
  ready_.erase(ready_.begin());
  changed_.notify_all();
  if (ready.error) std::rethrow_exception(ready.error);
  return std::move(ready.batch);
}

void Prefetcher::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || (next_ >= 0 && static_cast<int64_t>(ready_.size()) < depth_); });
    if (stop_) return;
    const int64_t first = next_, count = count_, version = version_;
    lock.unlock();
    Ready ready{first, {}, nullptr};
    try {
      loader_.read_ahead(first, count);
      for (int64_t ahead = 1; ahead <= depth_; ++ahead) loader_.read_ahead(first + ahead * stride_, count);
      ready.batch = loader_.batch(first, count);
    } catch (...) {
      ready.error = std::current_exception();
    }
    lock.lock();
    if (version != version_) continue;
    ready_.push_back(std::move(ready));
    next_ = first + stride_;
    changed_.notify_all();
  }
}

}  // namespace ingot::data
