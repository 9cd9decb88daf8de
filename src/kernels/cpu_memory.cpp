#include "kernels/cpu_memory.h"

#include <c10/core/CPUAllocator.h>

#include <cstdlib>

#include "base/environment.h"
#include "base/error.h"
#include "base/process.h"
#include "base/text.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INGOT_SANITIZED 1
#else
#define INGOT_SANITIZED 0
#endif

namespace ingot::kernels {
namespace {

constexpr size_t kSmallestBytes = 64 << 10;

base::PagePool* pool = nullptr;  // never destroyed: tensors may outlive main()

void free_block(void* block) { pool->owns(block) ? pool->give(block) : std::free(block); }

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_block, at::kCPU};
    if (bytes >= kSmallestBytes)
      if (void* block = pool->take(bytes)) return {block, block, &free_block, at::kCPU};
    void* block = nullptr;
    if (posix_memalign(&block, base::PagePool::kAlignment, bytes) != 0)
      throw base::OutOfMemoryError("the host has no memory for a tensor of {}", base::format_bytes(static_cast<int64_t>(bytes)));
    return {block, block, &free_block, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

bool page_pool_is_wanted() {
  const auto& asked = base::environment().cpu_allocator;
  if (!asked.empty() && asked != "pool" && asked != "system")
    throw base::ConfigError("INGOT_CPU_ALLOCATOR is '{}': it takes pool or system", asked);
  return !INGOT_SANITIZED && asked != "system";
}

void use_page_pool() {
  if (pool || !page_pool_is_wanted()) return;
  pool = new base::PagePool(static_cast<size_t>(2 * base::total_memory_bytes()));
  static Allocator allocator;
  c10::SetCPUAllocator(&allocator, 1);
}

void release_freed_tensors() {
  if (pool) pool->trim();
}

void release_freed_memory() {
  release_freed_tensors();
  base::release_freed_memory();
}

base::PagePool::Use page_pool_use() { return pool ? pool->use() : base::PagePool::Use{}; }

}  // namespace ingot::kernels
