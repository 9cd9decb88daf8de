// run_ranks: the ranks of a job as threads of one process.
#include <ATen/Parallel.h>

#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/process.h"
#include "comm/world.h"

namespace ingot::comm {
namespace {

// Where threads find the segment of a group: the first to ask makes it.
struct MeetingPlace {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Segment>> segments;
};

class ThreadFabric : public Fabric {
 public:
  ThreadFabric(std::shared_ptr<MeetingPlace> place, const WorldOptions& options, bool may_spin)
      : place_(std::move(place)), options_(options), may_spin_(may_spin) {}

  std::unique_ptr<Backend> connect(const std::string& key, const std::vector<int>& members, int rank) override {
    std::shared_ptr<Segment> segment;
    {
      const std::lock_guard lock(place_->mutex);
      auto& known = place_->segments[key];
      segment = known.lock();
      if (!segment) known = segment = Segment::on_heap(static_cast<int>(members.size()));
    }
    return std::make_unique<SharedBackend>(std::move(segment), rank, members, options_.timeout, options_.delay, may_spin_);
  }
  std::string description() const override { return "threads of one process"; }

 private:
  std::shared_ptr<MeetingPlace> place_;
  WorldOptions options_;
  bool may_spin_;
};

bool is_consequence(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const base::CommError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void run_ranks(int size, const std::function<void(World&)>& body, const WorldOptions& options) {
  const auto place = std::make_shared<MeetingPlace>();
  std::vector<std::exception_ptr> failures(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        World world(rank, size, std::make_unique<ThreadFabric>(place, options, size <= base::usable_cores()));
        body(world);
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::exception_ptr first;
  for (const auto& failure : failures) {
    if (!failure) continue;
    if (!is_consequence(failure)) std::rethrow_exception(failure);
    if (!first) first = failure;
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace ingot::comm
