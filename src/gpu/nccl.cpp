// Collectives by NCCL (comm/nccl_backend.h), for libingot_cuda.so.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "base/error.h"
#include "comm/monitored_barrier.h"
#include "comm/nccl_backend.h"

namespace ingot::comm {

using base::CommError;

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
    nccl_ = communicators(store_);
    down_ = communicators(c10::make_intrusive<c10d::PrefixStore>("down", store_));
    watchdog_ = std::thread([this] { watch(); });
  }

  ~NcclBackend() override {
    {
      const std::lock_guard lock(mutex_);
      is_closing_ = true;
    }
    changed_.notify_all();
    watchdog_.join();
    if (!failure_.empty()) return;
    nccl_->shutdown();
    down_->shutdown();
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

  // They connect when they are first used.
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> communicators(c10::intrusive_ptr<c10d::Store> store) const {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = std::chrono::duration_cast<std::chrono::milliseconds>(10 * timeout_);  // ours comes first and names ranks
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(std::move(store), rank_, static_cast<int>(members_.size()), options);
  }

  // c10d has one communicator, and one stream, for all messages of two ranks: a send and a receive there follow each other, and two ranks
  // that both send first wait for each other. So messages to higher ranks and messages to lower ones have each their own.
  c10d::ProcessGroupNCCL& messages(int from, int to) {
    const int peer = from == rank_ ? to : from;
    if (known_peers_.insert(peer).second) meet(peer);
    return from < to ? *nccl_ : *down_;
  }

  // Connecting holds the host until the other rank does the same: both connect both ways, in the same order, whatever message comes first.
  void meet(int peer) {
    std::vector<at::Tensor> one = {at::zeros({1}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA))};
    const auto pass = [&](c10d::ProcessGroupNCCL& group, bool is_sender) {
      (is_sender ? group.send(one, peer, 0) : group.recv(one, peer, 0))->synchronize();
    };
    pass(*nccl_, rank_ < peer);
    pass(*down_, rank_ > peer);
  }

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
      case Kind::send: return messages(rank_, o.peer).send(one, o.peer, 0);
      case Kind::receive: return messages(o.peer, rank_).recv(one, o.peer, 0);
      case Kind::barrier: break;  // the host's (comm/host_and_device.h)
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
      down_->abort();
      lock.lock();
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::vector<int> members_;
  std::chrono::duration<double> timeout_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_, down_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<UnderWay> under_way_;
  std::string failure_;
  bool is_closing_ = false;
  std::set<int> known_peers_;
  std::thread watchdog_;
};

}  // namespace

}  // namespace ingot::comm

extern "C" __attribute__((visibility("default"))) ingot::comm::Backend* ingot_make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, const std::vector<int>& members, std::chrono::duration<double> timeout) {
  try {
    return new ingot::comm::NcclBackend(store, rank, members, timeout);
  } catch (const c10::Error& failure) {
    throw ingot::base::CommError("NCCL could not be started: {}", failure.what_without_backtrace());
  }
}
