#include "kernels/gpu/host_block.h"

#include <cxxabi.h>
#include <fmt/format.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/gpu/host_shared_memory.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace ingot::kernels::gpu::host {
namespace {

constexpr size_t kStackBytes = 64 << 10;

// Of all blocks of a launch: a thousand stacks are not cheap.
using Stacks = std::vector<std::unique_ptr<char[]>>;

struct Fiber {
  enum class State { ready, at_barrier, in_wave, done };
  ucontext_t context{};
  char* stack = nullptr;
  State state = State::ready;
  int line = 0, wave = 0;
  using Value = std::array<char, kExchangedBytes>;
  alignas(8) Value value{}, published{};
};

class Block {
 public:
  // `random`: for the order of waves; null: all of them go on together.
  Block(const Place& place, const std::string& name, const std::function<void()>& kernel, const std::vector<int>& order,
        const Stacks& stacks, std::mt19937_64* random)
      : place_(place), name_(name), kernel_(kernel), order_(order), random_(random), fibers_(stacks.size()) {
    for (size_t i = 0; i < stacks.size(); ++i) fibers_[i].stack = stacks[i].get();
  }

  void run() {
    for (auto& fiber : fibers_) {
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack;
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = &scheduler_;
      makecontext(&fiber.context, &Block::entry, 0);
    }
    while (!all_are(Fiber::State::done)) {
      for (const int thread : order_)
        if (fibers_[static_cast<size_t>(thread)].state == Fiber::State::ready) resume(thread);
      if (failure_) std::rethrow_exception(failure_);
      if (!shared_.race().empty())
        throw base::Error(fmt::format("{}, block {} of {}: {}", name_, place_.block, place_.blocks, shared_.race()));
      if (!release() && !all_are(Fiber::State::done)) throw base::Error(stuck());
    }
  }

  Place place() const {
    Place place = place_;
    place.thread = running_;
    return place;
  }
  void wait(Fiber::State state, int line) {
    self().state = state;
    self().line = line;
    switch_to_scheduler();
  }
  void exchange(const void* value, int bytes, int wave, int line) {
    std::memcpy(self().value.data(), value, static_cast<size_t>(bytes));
    self().wave = wave;
    wait(Fiber::State::in_wave, line);
  }
  const void* published_by(int thread, int wave) const {
    return fibers_.at(static_cast<size_t>(running_ / wave * wave + thread)).published.data();
  }
  void* shared_memory(int key, int64_t bytes, int wave) { return shared_.area(key, bytes, place_.threads, wave); }
  void pass_matrices() { shared_.pass_matrices(running_); }
  void note(const void* address, int64_t bytes, bool is_write) { shared_.note(running_, address, bytes, is_write); }

  static thread_local Block* running_block;

 private:
  static void entry() {
    running_block->begin();
    try {
      running_block->kernel_();
    } catch (...) {
      running_block->failure_ = std::current_exception();
    }
    running_block->self().state = Fiber::State::done;
    running_block->end();
  }

  Fiber& self() { return fibers_[static_cast<size_t>(running_)]; }
  bool all_are(Fiber::State state) const {
    return std::all_of(fibers_.begin(), fibers_.end(), [&](const Fiber& fiber) { return fiber.state == state; });
  }

#if defined(__SANITIZE_ADDRESS__)
  void resume(int thread) {
    running_ = thread;
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, self().stack, kStackBytes);
    swapcontext(&scheduler_, &self().context);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
  }
  void begin() { __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack_, &scheduler_stack_bytes_); }
  void end() { __sanitizer_start_switch_fiber(nullptr, scheduler_stack_, scheduler_stack_bytes_); }
  void switch_to_scheduler() {
    void* fake = nullptr;
    auto& fiber = self();
    __sanitizer_start_switch_fiber(&fake, scheduler_stack_, scheduler_stack_bytes_);
    swapcontext(&fiber.context, &scheduler_);
    __sanitizer_finish_switch_fiber(fake, &scheduler_stack_, &scheduler_stack_bytes_);
  }
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
#else
  void resume(int thread) {
    running_ = thread;
    swapcontext(&scheduler_, &self().context);
  }
  void begin() {}
  void end() {}
  void switch_to_scheduler() { swapcontext(&self().context, &scheduler_); }
#endif

  // Lets go those that all the others of their wave, or of the block, have joined at the same line.
  bool release() {
    const auto same = [](auto begin, auto end, Fiber::State state) {
      return std::all_of(begin, end, [&](const Fiber& fiber) { return fiber.state == state && fiber.line == begin->line; });
    };
    const auto let_go = [](auto begin, auto end) {
      std::for_each(begin, end, [](Fiber& fiber) {
        fiber.published = fiber.value;
        fiber.state = Fiber::State::ready;
      });
    };
    if (same(fibers_.begin(), fibers_.end(), Fiber::State::at_barrier)) {
      shared_.pass_barrier(fibers_.front().line);
      let_go(fibers_.begin(), fibers_.end());
      ahead_ = fibers_.size();
      return true;
    }
    const auto size = static_cast<size_t>(std::max(
        1, std::max_element(fibers_.begin(), fibers_.end(), [](const Fiber& a, const Fiber& b) { return a.wave < b.wave; })->wave));
    std::vector<size_t> complete;  // waves, by their first thread
    const auto end_of = [&](size_t first) { return fibers_.begin() + static_cast<std::ptrdiff_t>(std::min(first + size, fibers_.size())); };
    const auto begin_of = [&](size_t first) { return fibers_.begin() + static_cast<std::ptrdiff_t>(first); };
    for (size_t first = 0; first < fibers_.size(); first += size)
      if (same(begin_of(first), end_of(first), Fiber::State::in_wave)) complete.push_back(first);
    if (complete.empty()) return false;
    if (random_ != nullptr) {  // one wave, as far as it comes
      if (std::find(complete.begin(), complete.end(), ahead_) == complete.end()) ahead_ = complete[(*random_)() % complete.size()];
      complete = {ahead_};
    }
    for (const size_t first : complete) let_go(begin_of(first), end_of(first));
    return true;
  }

  std::string stuck() const {
    std::map<std::string, int> at;
    for (const auto& fiber : fibers_)
      ++at[fiber.state == Fiber::State::done
               ? "have returned"
               : fmt::format("wait {} line {}", fiber.state == Fiber::State::in_wave ? "for their wave in" : "at the barrier of",
                             fiber.line)];
    std::string text = fmt::format("{}, block {} of {} goes on no more:", name_, place_.block, place_.blocks);
    for (const auto& [where, count] : at) text += fmt::format(" {} threads {};", count, where);
    return text;
  }

  Place place_;
  const std::string& name_;
  const std::function<void()>& kernel_;
  const std::vector<int>& order_;
  std::mt19937_64* const random_;
  size_t ahead_ = 0;  // first thread of the wave that runs ahead
  std::vector<Fiber> fibers_;
  SharedMemory shared_;
  ucontext_t scheduler_{};
  int running_ = 0;
  std::exception_ptr failure_;
};

thread_local Block* Block::running_block = nullptr;

// What loads and stores behind a block that ended with an error is no thread of it.
struct RunningBlock {
  explicit RunningBlock(Block& block) { Block::running_block = &block; }
  ~RunningBlock() { Block::running_block = nullptr; }
  RunningBlock(const RunningBlock&) = delete;
};

}  // namespace

void run(int64_t blocks, int threads, uint64_t seed, const std::function<void()>& kernel, const std::string& name) {
  std::vector<int> order(static_cast<size_t>(threads));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(seed);
  Stacks stacks;
  for (int i = 0; i < threads; ++i) stacks.push_back(std::make_unique_for_overwrite<char[]>(kStackBytes));
  std::vector<int64_t> order_of_blocks(static_cast<size_t>(blocks));
  std::iota(order_of_blocks.begin(), order_of_blocks.end(), 0);
  if (seed != 0) std::shuffle(order_of_blocks.begin(), order_of_blocks.end(), random);
  for (const int64_t block : order_of_blocks) {
    if (seed != 0) std::shuffle(order.begin(), order.end(), random);
    Block running({0, threads, block, blocks}, name, kernel, order, stacks, seed != 0 ? &random : nullptr);
    const RunningBlock guard(running);
    running.run();
  }
}

std::string name_of(const std::type_info& kernel) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(kernel.name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : kernel.name();
}

Place current() { return Block::running_block->place(); }
void barrier(int line) { Block::running_block->wait(Fiber::State::at_barrier, line); }
float shuffle_xor(float value, int mask, int wave, int line) {
  exchange(&value, sizeof value, wave, line);
  std::memcpy(&value, published_by((current().thread % wave) ^ mask, wave), sizeof value);
  return value;
}
void exchange(const void* value, int bytes, int wave, int line) { Block::running_block->exchange(value, bytes, wave, line); }
const void* published_by(int thread, int wave) { return Block::running_block->published_by(thread, wave); }
void pass_matrices() { Block::running_block->pass_matrices(); }
void* shared_memory(int key, int64_t bytes, int wave) { return Block::running_block->shared_memory(key, bytes, wave); }
void note_access(const void* address, int64_t bytes, bool is_write) {
  if (Block::running_block != nullptr) Block::running_block->note(address, bytes, is_write);
}

}  // namespace ingot::kernels::gpu::host
