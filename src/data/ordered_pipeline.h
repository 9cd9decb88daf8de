// One producer, several workers, one consumer, with results in the order of production and a bounded number of items and
// of bytes in flight: how a file of any size is worked on by many threads with the output of one.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace ingot::data {

/// Of one call. An item counts from when it was produced until its result was consumed.
template <class In>
struct OrderedLimits {
  int workers = 1;
  size_t window = 2;  // items in flight
  int64_t bytes = 0;  // of all items in flight, or of one alone that has more; one more is produced and waits
  std::function<int64_t(const In&)> bytes_of;
};

/// For blocks of text of a megabyte, among which there may be documents of many: enough of the former for all workers, few of the latter.
template <class In>
OrderedLimits<In> limits_of_blocks(int workers, std::function<int64_t(const In&)> bytes_of) {
  const auto window = 2 * workers + 2;
  return {workers, static_cast<size_t>(window), std::max(int64_t{128}, int64_t{2} * window) << 20, std::move(bytes_of)};
}

/// Calls `produce(item)` on a thread of its own until it returns false, `work(item)` on workers, and `consume(result)` on the calling
/// thread. The exception that is thrown is the one of the earliest item, whatever the number of threads; all threads have ended when this
/// returns or throws.
template <class In, class Out>
void run_ordered(const OrderedLimits<In>& limits, const std::function<bool(In&)>& produce, const std::function<Out(In)>& work,
                 const std::function<void(Out)>& consume) {
  struct Slot {
    std::optional<In> in;
    std::optional<Out> out;
    std::exception_ptr error;
    int64_t bytes = 0;
    bool taken = false, done = false;
  };
  int64_t bytes_in_flight = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Slot>> slots;
  bool produced_all = false, stop = false;

  const auto run_producer = [&] {
    for (bool more = true; more;) {
      auto slot = std::make_shared<Slot>();
      try {
        In item;
        more = produce(item);
        if (more) slot->bytes = limits.bytes_of(item), slot->in = std::move(item);
      } catch (...) {
        slot->error = std::current_exception();
        slot->taken = slot->done = true;
        more = false;
      }
      std::unique_lock lock(mutex);
      // What the consumer is at counts too: it is no slot any more, but its bytes are in flight.
      changed.wait(lock, [&] {
        return stop || (slots.size() < limits.window && (bytes_in_flight == 0 || bytes_in_flight + slot->bytes <= limits.bytes));
      });
      if (stop) return;
      bytes_in_flight += slot->bytes;
      if (slot->in || slot->error) slots.push_back(std::move(slot));
      produced_all = !more;
      changed.notify_all();
    }
  };

  const auto run_worker = [&] {
    std::unique_lock lock(mutex);
    while (true) {
      std::shared_ptr<Slot> mine;
      changed.wait(lock, [&] {
        for (const auto& slot : slots) {
          if (slot->taken) continue;
          mine = slot;
          break;
        }
        return mine || stop || produced_all;
      });
      if (!mine || stop) return;
      mine->taken = true;
      lock.unlock();
      try {
        mine->out = work(std::move(*mine->in));
      } catch (...) {
        mine->error = std::current_exception();
      }
      mine->in.reset();
      lock.lock();
      mine->done = true;
      changed.notify_all();
    }
  };

  std::vector<std::jthread> threads;
  struct Stop {  // runs before the threads are joined, also when consume() throws
    std::mutex& mutex;
    std::condition_variable& changed;
    bool& stop;
    ~Stop() {
      const std::lock_guard lock(mutex);
      stop = true;
      changed.notify_all();
    }
  } const stop_on_exit{mutex, changed, stop};
  threads.emplace_back(run_producer);
  for (int w = 0; w < limits.workers; ++w) threads.emplace_back(run_worker);

  while (true) {
    std::shared_ptr<Slot> front;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return slots.empty() ? produced_all : slots.front()->done; });
      if (slots.empty()) return;
      front = slots.front();
      slots.pop_front();
      changed.notify_all();
    }
    if (front->error) std::rethrow_exception(front->error);
    consume(std::move(*front->out));
    front->out.reset();
    const std::lock_guard lock(mutex);
    bytes_in_flight -= front->bytes;
    changed.notify_all();
  }
}

}  // namespace ingot::data
