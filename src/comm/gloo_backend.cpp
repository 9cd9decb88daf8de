#include "comm/gloo_backend.h"

#include <sched.h>

#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "comm/monitored_barrier.h"
#include "comm/pairwise.h"

#ifdef INGOT_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

namespace ingot::comm {

using base::CommError;

#ifdef INGOT_GLOO
namespace {

constexpr int kCollectiveTag = 1, kMessageTag = 2;

// A device whose event loop never pushes another thread off its core when it wakes (SCHED_BATCH, which a thread inherits from the one that
// starts it). Gloo's loop asks for the same event again and again while another thread sends on that connection, under its lock: a loop
// that is woken by what arrives, on the sender's core, would then hold that core until its time slice ends. On a core that ranks share, a
// sum of 64 KiB took 6 ms for 0.5 (benchmarks/collectives_vs_c10d*.md).
std::shared_ptr<::gloo::transport::Device> patient_device(const std::string& address) {
  sched_param parameter{};
  const bool is_usual = sched_getscheduler(0) == SCHED_OTHER;
  if (is_usual) sched_setscheduler(0, SCHED_BATCH, &parameter);  // where it is forbidden, all stays as it was
  const std::shared_ptr<void> restore(nullptr, [&](void*) {
    if (is_usual) sched_setscheduler(0, SCHED_OTHER, &parameter);
  });
  return c10d::ProcessGroupGloo::createDeviceForHostname(address);
}

class GlooBackend : public Backend {
 public:
  GlooBackend(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int> members, const std::string& address,
              std::chrono::duration<double> timeout, ArtificialDelay delay)
      : store_(std::move(store)),
        rank_(rank),
        members_(std::move(members)),
        delay_(delay),
        timeout_(std::chrono::duration_cast<std::chrono::milliseconds>(timeout)) {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout_);
    options->devices.push_back(patient_device(address));
    options->threads = 1;  // collectives run on our own lanes
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store_, rank_, size(), options);
  }

  std::string name() const override { return "gloo"; }

  Work start(Operation operation, bool blocking) override {
    const bool is_message = operation.kind == Kind::send || operation.kind == Kind::receive;
    auto& executor = executors_[is_message ? std::pair{operation.peer, operation.kind == Kind::send} : std::pair{-1, false}];
    if (!executor) executor = std::make_unique<SerialExecutor>();
    return executor->run([this, o = std::move(operation)] { run(o); }, blocking);
  }

 private:
  int size() const { return static_cast<int>(members_.size()); }

  c10::intrusive_ptr<c10d::ProcessGroupGloo> connections() {
    const std::lock_guard lock(mutex_);
    if (!gloo_) throw CommError("the group's connections were closed after a failure");
    return gloo_;
  }

  // One transfer, known to hang_up() while it lasts.
  Wire::Waiter transfer(const std::function<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroupGloo&)>& begin) {
    const auto work = begin(*connections());
    const std::lock_guard lock(mutex_);
    const auto place = in_flight_.insert(in_flight_.end(), work);
    const std::shared_ptr<void> entry(nullptr, [this, place](void*) {
      const std::lock_guard lock(mutex_);
      in_flight_.erase(place);
    });
    return [this, work, entry] { work->wait(timeout_); };
  }

  Wire wire(int tag) {
    return {.send =
                [this, tag](const at::Tensor& flat, int to) {
                  std::vector<at::Tensor> list = {flat};
                  return transfer([&](auto& gloo) { return gloo.send(list, to, tag); });
                },
            .receive =
                [this, tag](const at::Tensor& flat, int from) {
                  std::vector<at::Tensor> list = {flat};
                  return transfer([&](auto& gloo) { return gloo.recv(list, from, tag); });
                }};
  }

  // Closes the connections, once no transfer uses them, so that a member that waits for this rank, and not for the one that failed, comes
  // to the monitored barrier now and not when this rank has left it.
  void hang_up() {
    c10::intrusive_ptr<c10d::ProcessGroupGloo> last;
    const std::lock_guard lock(mutex_);
    for (const auto& work : in_flight_) work->abort();
    last.swap(gloo_);
  }

  // Large sums, whose bytes both send alike; bf16 it would add in bf16.
  static bool gloos_ring_is_faster(const Operation& o) {
    constexpr int64_t kLargeBytes = 4 << 20;
    return o.kind == Kind::all_reduce && o.reduction == Reduction::sum && o.bytes() >= kLargeBytes && o.dtype() != at::kBFloat16;
  }

  void run(const Operation& o) {
    const auto began = Clock::now();
    const auto traffic = traffic_of(o, rank_, size());
    delay_.hold_back(o, traffic);
    try {
      if (o.kind == Kind::send) o.input.numel() > 0 ? wire(kMessageTag).send(o.input.view(-1), o.peer)() : void();
      else if (o.kind == Kind::receive) o.output.numel() > 0 ? wire(kMessageTag).receive(o.output.view(-1), o.peer)() : void();
      else if (gloos_ring_is_faster(o)) {
        std::vector<at::Tensor> one = {o.output};
        const auto gloo = connections();
        gloo->allreduce(one)->wait(timeout_);
      } else run_pairwise(o, rank_, size(), wire(kCollectiveTag));
    } catch (const std::exception& failure) {
      hang_up();
      const auto missing = monitored_barrier(store_, "monitored-barrier", rank_, members_);
      const std::string cause = failure.what();
      const bool is_timeout = Clock::now() - began >= timeout_;
      throw CommError(
          "{}{} (Gloo: {})", missing.empty() ? "the connection failed" : missing,
          is_timeout ? fmt::format(" within {:g} s (resilience.comm_timeout_s)", std::chrono::duration<double>(timeout_).count()) : "",
          cause.substr(0, cause.find('\n')));
    }
    delay_.hold_on(o, traffic, began);
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  std::vector<int> members_;
  ArtificialDelay delay_;
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;                                 // of the next two
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;  // null after a failure
  std::list<c10::intrusive_ptr<c10d::Work>> in_flight_;
  std::map<std::pair<int, bool>, std::unique_ptr<SerialExecutor>> executors_;  // by (peer, is it a send); (-1, false): collectives
};

}  // namespace

bool has_gloo() { return true; }

std::unique_ptr<Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<int> members,
                                           const std::string& address, std::chrono::duration<double> timeout, ArtificialDelay delay) {
  try {
    return std::make_unique<GlooBackend>(std::move(store), rank, std::move(members), address, timeout, delay);
  } catch (const std::exception& failure) {
    const std::string cause = failure.what();
    throw CommError("the ranks {} could not be connected over TCP from {}: {}", members, address, cause.substr(0, cause.find('\n')));
  }
}
#else
bool has_gloo() { return false; }

std::unique_ptr<Backend> make_gloo_backend(c10::intrusive_ptr<c10d::Store>, int, std::vector<int>, const std::string&,
                                           std::chrono::duration<double>, ArtificialDelay) {
  throw CommError("ranks on several machines need Gloo, without whose headers this program was built: install libgloo-dev and build again");
}
#endif

}  // namespace ingot::comm
