#include "comm/nccl_backend.h"

#include "base/error.h"

#ifdef INGOT_NCCL
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "comm/monitored_barrier.h"
#endif

namespace ingot::comm {

using base::CommError;

#ifdef INGOT_NCCL
namespace {

c10d::ReduceOp reduce_op_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::max: return c10d::ReduceOp::MAX;
    case Reduction::min: return c10d::ReduceOp::MIN;
    default: return c10d::ReduceOp::SUM;
  }
}

class NcclBackend : public Backend {
 public:
  NcclBackend(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int> members, std::chrono::duration<double> timeout)
      : store_(std::move(store)), rank_(rank), members_(std::move(members)), timeout_(timeout) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::duration_cast<std::chrono::milliseconds>(10 * timeout_);  // ours comes first and names ranks
    nccl_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(store_, rank_, static_cast<int>(members_.size()), options);
    watchdog_ = std::thread([this] { watch(); });
  }

  ~NcclBackend() override {
    {
      const std::lock_guard lock(mutex_);
      is_closing_ = true;
    }
    changed_.notify_all();
    watchdog_.join();
  }

  std::string name() const override { return "nccl"; }

  Work start(Operation o, bool) override {
    throw_if_broken();
    try {
      auto work = submit(o);
      const std::lock_guard lock(mutex_);
      under_way_.push_back({work, describe(o), Clock::now()});
      return Work(std::make_shared<Submitted>(*this, std::move(work)));
    } catch (const c10::Error& failure) {
      throw CommError("NCCL: {}", failure.what_without_backtrace());
    }
  }

 private:
  class Submitted : public Pending {
   public:
    Submitted(NcclBackend& backend, c10::intrusive_ptr<c10d::Work> work) : backend_(backend), work_(std::move(work)) {}
    void wait() override {
      work_->synchronize();
      backend_.throw_if_broken();
    }
    bool is_done() override { return work_->isCompleted(); }

   private:
    NcclBackend& backend_;
    c10::intrusive_ptr<c10d::Work> work_;
  };
  struct UnderWay {
    c10::intrusive_ptr<c10d::Work> work;
    std::string what;
    Clock::time_point since;
  };

  c10::intrusive_ptr<c10d::Work> submit(Operation& o) {
    std::vector<at::Tensor> one = {o.kind == Kind::receive ? o.output : o.input};
    switch (o.kind) {
      case Kind::all_reduce: {
        c10d::AllreduceOptions options;
        options.reduceOp = reduce_op_of(o.reduction);
        return nccl_->allreduce(one, options);
      }
      case Kind::reduce_scatter: {
        c10d::ReduceScatterOptions options;
        options.reduceOp = reduce_op_of(o.reduction);
        return nccl_->_reduce_scatter_base(o.output, o.input, options);
      }
      case Kind::all_gather: return nccl_->_allgather_base(o.output, o.input);
      case Kind::broadcast: {
        c10d::BroadcastOptions options;
        options.rootRank = o.peer;
        return nccl_->broadcast(one, options);
      }
      case Kind::reduce: {
        c10d::ReduceOptions options;
        options.reduceOp = reduce_op_of(o.reduction);
        options.rootRank = o.peer;
        return nccl_->reduce(one, options);
      }
      case Kind::all_to_all: {
        auto in = o.input.view(-1), out = o.output.view(-1);
        return nccl_->alltoall_base(out, in, o.output_counts, o.input_counts);
      }
      case Kind::send: return nccl_->send(one, o.peer, 0);
      case Kind::receive: return nccl_->recv(one, o.peer, 0);
      case Kind::barrier: return nccl_->barrier();
    }
    throw CommError("no such operation");
  }

  void throw_if_broken() {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw CommError("{}", failure_);
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!is_closing_ && failure_.empty()) {
      changed_.wait_for(lock, std::chrono::milliseconds(100));
      while (!under_way_.empty() && under_way_.front().work->isCompleted()) under_way_.pop_front();
      if (under_way_.empty() || Clock::now() - under_way_.front().since < timeout_) continue;
      const auto what = under_way_.front().what;
      lock.unlock();
      const auto missing = monitored_barrier(store_, "monitored-barrier", rank_, members_);
      lock.lock();
      failure_ = fmt::format("{} did not end within {:g} s (resilience.comm_timeout_s): {}", what, timeout_.count(),
                             missing.empty() ? "all ranks answer; compare their flight recordings (ingot doctor --ledgers)" : missing);
      lock.unlock();
      nccl_->abort();
      lock.lock();
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::vector<int> members_;
  std::chrono::duration<double> timeout_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<UnderWay> under_way_;
  std::string failure_;
  bool is_closing_ = false;
  std::thread watchdog_;
};

}  // namespace

bool has_nccl() { return true; }

std::unique_ptr<Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int> members,
                                           std::chrono::duration<double> timeout) {
  try {
    return std::make_unique<NcclBackend>(std::move(store), rank, std::move(members), timeout);
  } catch (const c10::Error& failure) {
    throw CommError("NCCL could not be started: {}", failure.what_without_backtrace());
  }
}
#else
bool has_nccl() { return false; }

std::unique_ptr<Backend> make_nccl_backend(c10::intrusive_ptr<c10d::Store>, int, std::vector<int>, std::chrono::duration<double>) {
  throw CommError("several GPUs need NCCL, which this program was built without: use ./scripts/build cuda");
}
#endif

}  // namespace ingot::comm
