#include "comm/serial_executor.h"

#include <exception>

#include "base/error.h"

namespace ingot::comm {

class SerialExecutor::Job : public Pending {
 public:
  explicit Job(std::function<void()> operation) : operation_(std::move(operation)) {}

  void run() {
    std::exception_ptr failure;
    try {
      operation_();
    } catch (...) {
      failure = std::current_exception();
    }
    end(failure);
  }
  void drop() { end(std::make_exception_ptr(base::CommError("the group was closed before the operation began"))); }

  void wait() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return is_done_; });
    if (failure_) std::rethrow_exception(failure_);
  }
  bool is_done() override {
    const std::lock_guard lock(mutex_);
    return is_done_;
  }

 private:
  void end(std::exception_ptr failure) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = std::move(failure);
      is_done_ = true;
      operation_ = nullptr;  // lets go of the tensors
    }
    ended_.notify_all();
  }

  std::function<void()> operation_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_done_ = false;
  std::exception_ptr failure_;
};

SerialExecutor::~SerialExecutor() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Work SerialExecutor::run(std::function<void()> operation, bool blocking) {
  auto job = std::make_shared<Job>(std::move(operation));
  std::unique_lock lock(mutex_);
  if (blocking && queue_.empty() && !is_busy_) {
    is_busy_ = true;
    lock.unlock();
    job->run();
    lock.lock();
    is_busy_ = false;
    lock.unlock();
    changed_.notify_all();
    return Work(std::move(job));
  }
  queue_.push_back(job);
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  lock.unlock();
  changed_.notify_all();
  return Work(std::move(job));
}

void SerialExecutor::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_closing_ || (!queue_.empty() && !is_busy_); });
    if (is_closing_) break;
    auto job = std::move(queue_.front());
    queue_.pop_front();
    is_busy_ = true;
    lock.unlock();
    job->run();
    job.reset();
    lock.lock();
    is_busy_ = false;
  }
  for (auto& job : queue_) job->drop();
  queue_.clear();
}

}  // namespace ingot::comm
