#include "object_store/multipart.h"

#include <algorithm>

#include "base/log.h"

namespace ingot::object_store {

int64_t part_bytes_for(int64_t object_bytes, int64_t preferred_bytes) {
  preferred_bytes = std::max(preferred_bytes, kSmallestPartBytes);
  const int64_t needed_bytes = (object_bytes + kMostParts - 1) / kMostParts;
  return std::max<int64_t>(1, (needed_bytes + preferred_bytes - 1) / preferred_bytes) * preferred_bytes;
}

MultipartUpload::MultipartUpload(const Client& client, const std::string& key, int in_flight)
    : client_(client), upload_(client.create_upload(key)), in_flight_limit_(std::max(1, in_flight)) {}

MultipartUpload::~MultipartUpload() {
  if (ended_at_store_) return;
  try {
    abort();
  } catch (const std::exception& failure) {
    base::log_warning("the parts of an unfinished upload stay in the object store: {}", failure.what());
  }
}

void MultipartUpload::add_part(int number, std::vector<std::byte> content) {
  std::unique_lock lock(mutex_);
  if (number < 1 || number > kMostParts || numbers_used_[static_cast<size_t>(number)])
    throw ObjectStoreError(Failure::refused,
                           fmt::format("part {} of '{}' cannot be added: numbers go from 1 to {}, each once; larger parts make fewer",
                                       number, upload_.key, kMostParts));
  numbers_used_[static_cast<size_t>(number)] = true;
  // No longer than the deadline of a part that is under way.
  changed_.wait(lock, [&] { return in_flight_ < in_flight_limit_ || failure_ || ending_; });
  if (failure_) std::rethrow_exception(failure_);
  if (ending_) throw ObjectStoreError(Failure::cancelled, fmt::format("the upload of '{}' has ended", upload_.key));
  ++in_flight_;
  waiting_.push_back({number, std::move(content)});
  if (static_cast<int>(workers_.size()) < in_flight_) workers_.emplace_back([this] { run(); });
  changed_.notify_all();
}

void MultipartUpload::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !waiting_.empty() || ending_; });
    if (ending_) return;
    Work work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    Part part;
    try {
      part = client_.upload_part(upload_, work.number, work.content, stop_.get_token());
    } catch (...) {
      failure = std::current_exception();
    }
    work.content = {};
    lock.lock();
    --in_flight_;
    if (!failure) {
      parts_.push_back(std::move(part));
    } else if (!failure_) {
      failure_ = failure;
      stop_.request_stop();
    }
    changed_.notify_all();
  }
}

void MultipartUpload::stop_workers() {
  std::vector<std::jthread> workers;
  {
    const std::lock_guard guard(mutex_);
    ending_ = true;
    workers.swap(workers_);
  }
  changed_.notify_all();
}

std::string MultipartUpload::complete() {
  bool empty = false;
  {
    const std::lock_guard guard(mutex_);
    empty = parts_.empty() && in_flight_ == 0 && !failure_;
  }
  if (empty) add_part(1, {});  // a store needs a part even for an object without content
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return in_flight_ == 0 || failure_ || ending_; });
    if (failure_) std::rethrow_exception(failure_);
    if (ending_) throw ObjectStoreError(Failure::cancelled, fmt::format("the upload of '{}' has ended", upload_.key));
  }
  stop_workers();
  std::sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) { return a.number < b.number; });
  std::string etag = client_.complete_upload(upload_, parts_);
  ended_at_store_ = true;
  return etag;
}

void MultipartUpload::abort() {
  stop_.request_stop();
  stop_workers();
  if (ended_at_store_) return;
  client_.abort_upload(upload_);
  ended_at_store_ = true;
}

}  // namespace ingot::object_store
