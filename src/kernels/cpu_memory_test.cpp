#include "kernels/cpu_memory.h"

#include <gtest/gtest.h>

#include "device/aten.h"

namespace ingot::kernels {
namespace {

TEST(CpuMemory, big_tensors_come_from_the_pool_and_small_ones_do_not) {
  const auto from_before = at::ones({1 << 20});  // freed by torch's own allocator, after the change
  use_page_pool();
  if (!page_pool_is_wanted()) {  // a sanitizer's build, or INGOT_CPU_ALLOCATOR=system
    EXPECT_EQ((at::ones({1 << 20}) + from_before).sum().item<float>(), 2 << 20);
    EXPECT_EQ(page_pool_use().peak_in_use_bytes, 0u);
    return;
  }
  const auto before = page_pool_use().in_use_bytes;
  {
    const auto small = at::ones({1000});
    EXPECT_EQ(page_pool_use().in_use_bytes, before);
    auto big = at::ones({1 << 18});
    EXPECT_GE(page_pool_use().in_use_bytes, before + (1 << 20));
    big.resize_({1 << 20});
    EXPECT_EQ(big.slice(0, 0, 1 << 18).sum().item<float>(), 1 << 18);
    EXPECT_EQ((from_before + big.fill_(1)).sum().item<float>(), 2 << 20);
  }
  EXPECT_EQ(page_pool_use().in_use_bytes, before);
  EXPECT_EQ(at::empty({0, 5}).numel(), 0);
  release_freed_memory();
  EXPECT_LE(page_pool_use().resident_bytes, before + 4096);
}

}  // namespace
}  // namespace ingot::kernels
