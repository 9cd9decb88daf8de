// The handle of an operation under way. Waiting returns when the result is in the tensors (on a GPU: when work submitted to
// the current stream from now on will see it) and throws CommError when the operation failed or its deadline passed.
// A handle may be dropped: the operation goes on, and its failure surfaces at the group's next operation.
#pragma once

#include <memory>

namespace ingot::comm {

/// What a back-end implements for its own kind of operation under way.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual void wait() = 0;
  virtual bool is_done() = 0;
};

class [[nodiscard]] Work {
 public:
  Work() = default;  // already done
  explicit Work(std::shared_ptr<Pending> pending) : pending_(std::move(pending)) {}
  void wait() {
    if (pending_) pending_->wait();
    pending_.reset();
  }
  bool is_done() const { return !pending_ || pending_->is_done(); }

 private:
  std::shared_ptr<Pending> pending_;
};

}  // namespace ingot::comm
