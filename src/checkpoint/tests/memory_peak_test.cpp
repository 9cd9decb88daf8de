// Counts what operator new hands out, so that tests of damaged files can say that no large memory was asked for.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "checkpoint/tests/test_fuzz.h"

namespace ingot::checkpoint {
namespace {

std::atomic<int64_t> used{0}, peak{0}, base_used{0};

}  // namespace

void count(int64_t bytes) {
  const int64_t now = used.fetch_add(bytes) + bytes;
  int64_t before = peak.load();
  while (now > before && !peak.compare_exchange_weak(before, now)) {
  }
}

void MemoryPeak::reset() {
  base_used = used.load();
  peak = used.load();
}
int64_t MemoryPeak::bytes() { return peak - base_used; }

}  // namespace ingot::checkpoint

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(size_t size) {
  void* memory = std::malloc(size);
  if (!memory) throw std::bad_alloc();
  ingot::checkpoint::count(static_cast<int64_t>(malloc_usable_size(memory)));
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory) ingot::checkpoint::count(-static_cast<int64_t>(malloc_usable_size(memory)));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }
#endif
