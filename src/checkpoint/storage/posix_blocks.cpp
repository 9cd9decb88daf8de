// Blocks of a file, several under way at once: submitted to an io_uring, or to threads where there is none (old kernels, containers
// that forbid it). Both only write; what a result means, short writes included, is decided in one place.
#include <liburing.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "checkpoint/storage/posix_calls.h"

namespace ingot::checkpoint {
namespace {

struct Request {
  const std::byte* data = nullptr;
  int64_t offset = 0;
  size_t size_bytes = 0;
  uint64_t ticket = 0;
};

/// Bytes written, or -errno.
struct Result {
  Request request;
  int64_t value = 0;
};

class Queue {
 public:
  virtual ~Queue() = default;
  virtual void submit(const Request& request) = 0;
  /// Waits for one; something must be under way.
  virtual Result wait() = 0;
  virtual std::optional<Result> poll() = 0;
};

class UringQueue : public Queue {
 public:
  /// Nothing where the kernel has no io_uring or forbids it.
  static std::unique_ptr<Queue> open(int file, int depth) {
#ifdef __SANITIZE_THREAD__
    return nullptr;  // liburing maps its rings by system calls that ThreadSanitizer does not see
#endif
    auto queue = std::unique_ptr<UringQueue>(new UringQueue(file, depth));
    if (::io_uring_queue_init(static_cast<unsigned>(depth), &queue->ring_, 0) != 0) return nullptr;
    queue->open_ = true;
    return queue;
  }
  ~UringQueue() override {
    if (open_) ::io_uring_queue_exit(&ring_);
  }
  void submit(const Request& request) override {
    size_t slot = 0;
    while (busy_[slot]) ++slot;
    busy_[slot] = true;
    requests_[slot] = request;
    io_uring_sqe* entry = ::io_uring_get_sqe(&ring_);
    ::io_uring_prep_write(entry, file_, request.data, static_cast<unsigned>(request.size_bytes), static_cast<uint64_t>(request.offset));
    ::io_uring_sqe_set_data64(entry, slot);
    int submitted = 0;
    while ((submitted = ::io_uring_submit(&ring_)) == -EINTR || submitted == -EAGAIN || submitted == -EBUSY) {
    }
    if (submitted < 0) failed_.push_back({request, submitted}), busy_[slot] = false;
  }
  Result wait() override {
    if (auto failed = take_failed()) return *failed;
    io_uring_cqe* entry = nullptr;
    int error = 0;
    while ((error = ::io_uring_wait_cqe(&ring_, &entry)) == -EINTR) {
    }
    if (error != 0) throw base::CheckpointError("io_uring: {}", std::strerror(-error));
    return take(entry);
  }
  std::optional<Result> poll() override {
    if (auto failed = take_failed()) return failed;
    io_uring_cqe* entry = nullptr;
    if (::io_uring_peek_cqe(&ring_, &entry) != 0) return std::nullopt;
    return take(entry);
  }

 private:
  UringQueue(int file, int depth) : file_(file), requests_(static_cast<size_t>(depth)), busy_(static_cast<size_t>(depth), false) {}
  Result take(io_uring_cqe* entry) {
    const auto slot = static_cast<size_t>(::io_uring_cqe_get_data64(entry));
    const Result result{requests_[slot], entry->res};
    ::io_uring_cqe_seen(&ring_, entry);
    busy_[slot] = false;
    return result;
  }
  std::optional<Result> take_failed() {
    if (failed_.empty()) return std::nullopt;
    const auto result = failed_.back();
    failed_.pop_back();
    return result;
  }

  int file_;
  bool open_ = false;
  io_uring ring_{};
  std::vector<Request> requests_;
  std::vector<bool> busy_;
  std::vector<Result> failed_;  // refused by the kernel before they began
};

class ThreadQueue : public Queue {
 public:
  ThreadQueue(int file, int depth) {
    for (int i = 0; i < depth; ++i) threads_.emplace_back([this, file] { work(file); });
  }
  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  void submit(const Request& request) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(request);
    }
    changed_.notify_all();
  }
  Result wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !done_.empty(); });
    return pop();
  }
  std::optional<Result> poll() override {
    const std::lock_guard lock(mutex_);
    if (done_.empty()) return std::nullopt;
    return pop();
  }

 private:
  Result pop() {
    const auto result = done_.front();
    done_.pop_front();
    return result;
  }
  void work(int file) {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return closing_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const auto request = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      const ssize_t written = ::pwrite(file, request.data, request.size_bytes, request.offset);
      const int64_t value = written < 0 ? -errno : written;
      lock.lock();
      done_.push_back({request, value});
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> waiting_;
  std::deque<Result> done_;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

class PosixBlockSink : public BlockSink {
 public:
  PosixBlockSink(CallHook* hook, const fs::path& file, int64_t size_bytes, const BlockWriting& how)
      : file_(hook, file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW), depth_(how.depth) {
    direct_ = how.direct && set_direct(true);
    // One extent rather than many, and a full disk is found out before time is spent. Not all file systems can.
    if (size_bytes > 0 && ::fallocate(file_.number(), FALLOC_FL_KEEP_SIZE, 0, size_bytes) != 0 && (errno == ENOSPC || errno == EDQUOT))
      throw call_failure(Call::write, file, errno);
    if (how.uring) queue_ = UringQueue::open(file_.number(), depth_);
    if (!queue_) queue_ = std::make_unique<ThreadQueue>(file_.number(), depth_);
  }

  ~PosixBlockSink() override {
    // Memory that is being written must outlive the writes.
    try {
      while (under_way_ > 0) {
        queue_->wait();
        --under_way_;
      }
    } catch (const base::CheckpointError&) {
    }
  }

  void write(int64_t offset, const std::byte* data, int64_t size_bytes, uint64_t ticket) override {
    while (under_way_ >= depth_) take(queue_->wait());
    Request request{data, offset, static_cast<size_t>(size_bytes), ticket};
    size_t allowed = request.size_bytes;
    int refused = 0;
    while ((refused = file_.hook() ? file_.hook()->before(Call::write, file_.path(), allowed) : 0) == EINTR) {
    }
    if (refused != 0) throw call_failure(Call::write, file_.path(), refused);
    if (allowed < request.size_bytes) {  // a test's short write
      write_rest(request, 0);
      finished_.push_back(ticket);
      return;
    }
    queue_->submit(request);
    ++under_way_;
  }

  std::optional<uint64_t> finished(bool wait) override {
    if (finished_.empty() && under_way_ > 0) {
      if (wait) {
        take(queue_->wait());
      } else if (const auto result = queue_->poll()) {
        take(*result);
      }
    }
    if (finished_.empty()) return std::nullopt;
    const uint64_t ticket = finished_.front();
    finished_.pop_front();
    return ticket;
  }

  void close(int64_t size_bytes) override {
    must(file_.hook(), Call::resize, file_.path(), [&] { return ::ftruncate(file_.number(), size_bytes); });
    file_.sync();
    file_.close();
  }

 private:
  bool set_direct(bool direct) {
    const int flags = ::fcntl(file_.number(), F_GETFL);
    return ::fcntl(file_.number(), F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
  }

  void take(const Result& result) {
    --under_way_;
    const auto& request = result.request;
    const bool retry = result.value == -EINTR || result.value == -EAGAIN || (result.value == -EINVAL && direct_);
    if (result.value < 0 && !retry) throw call_failure(Call::write, file_.path(), static_cast<int>(-result.value));
    const auto done = static_cast<size_t>(std::max<int64_t>(0, result.value));
    if (done < request.size_bytes) write_rest(request, done);
    finished_.push_back(request.ticket);
  }

  // After a short write the rest is no longer aligned, and some file systems find out at the first write that they cannot bypass the
  // page cache: it goes through it. Writes that are under way are not disturbed by the change.
  void write_rest(const Request& request, size_t done) {
    if (direct_) direct_ = !set_direct(false);
    while (done < request.size_bytes) {
      const ssize_t put = attempt(file_.hook(), Call::write, file_.path(), request.size_bytes - done, [&](size_t allowed) {
        return ::pwrite(file_.number(), request.data + done, allowed, request.offset + static_cast<int64_t>(done));
      });
      if (put < 0) throw call_failure(Call::write, file_.path(), errno);
      done += static_cast<size_t>(put);
    }
  }

  Descriptor file_;
  int depth_, under_way_ = 0;
  bool direct_ = false;
  std::unique_ptr<Queue> queue_;
  std::deque<uint64_t> finished_;
};

}  // namespace

std::unique_ptr<BlockSink> PosixStorage::create_blocks(const fs::path& file, int64_t size_bytes) const {
  return std::make_unique<PosixBlockSink>(hook_, file, size_bytes, blocks_);
}

}  // namespace ingot::checkpoint
