#include "models/decode/team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ingot::models::decode {
namespace {

// About 50 us, which is longer than the steps of small models and the time between two passes of a text. Whoever has waited for longer
// sleeps: what it waits for may need its core, and a server may be without work.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

void wait_for_change(const std::atomic<int>& number, int old) {
  for (int spins = 0; number.load(std::memory_order_acquire) == old; ++spins) {
    if (spins < kSpins) pause();
    else number.wait(old, std::memory_order_acquire);
  }
}

}  // namespace

Team::Team(int workers) : workers_(workers) {
  for (int worker = 1; worker < workers; ++worker) threads_.emplace_back([this, worker] { work(worker); });
}

Team::~Team() {
  is_ending_ = true;
  ++runs_;
  runs_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Team::work(int worker) {
  for (int seen = 0;;) {
    wait_for_change(runs_, seen);
    ++seen;
    if (is_ending_) return;
    (*body_)(worker);
    wait_for_all();
  }
}

void Team::run(const std::function<void(int)>& body) {
  if (workers_ == 1) return body(0);
  body_ = &body;
  runs_.fetch_add(1, std::memory_order_release);
  runs_.notify_all();
  body(0);
  wait_for_all();
}

void Team::wait_for_all() {
  if (workers_ == 1) return;
  const int meeting = meetings_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == workers_) {
    arrived_.store(0, std::memory_order_relaxed);
    meetings_.fetch_add(1, std::memory_order_release);
    meetings_.notify_all();
    return;
  }
  wait_for_change(meetings_, meeting);
}

}  // namespace ingot::models::decode
