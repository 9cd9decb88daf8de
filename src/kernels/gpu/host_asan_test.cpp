// What ASan must catch in kernels that the host runs: this file and they are compiled with it, and all other tests of this folder are
// linked to them once more (host_kernels_asan_test).
#include <gtest/gtest.h>

#include <vector>

#include "kernels/gpu/dialect.h"
#include "kernels/gpu/host_kernels.h"

namespace ingot::kernels::gpu {
namespace {

volatile float sink = 0;

void read_shared(int from) {
  host::run(1, 32, 0, [&] {
    INGOT_SHARED_FLOATS(area, 30);  // whose last vector has two floats
    if (thread_index() < 30) area[thread_index()] = 1;
    barrier();
    if (thread_index() == 0) sink = area[from];
  });
}

TEST(HostKernelsWithAsanDeathTest, end_the_program_where_they_read_behind_shared_memory) {
  read_shared(29);
  EXPECT_DEATH(read_shared(30), "AddressSanitizer");
  EXPECT_DEATH(read_shared(32), "AddressSanitizer");
  EXPECT_DEATH(read_shared(-1), "AddressSanitizer");
}

void gather(const HostKernels& kernels, int64_t row) {
  const std::vector<float> x(3 * 5);
  const std::vector<int64_t> order{0, row};
  std::vector<float> out(2 * 5);
  kernels.gather_rows({2, 5, 1, false, false, x.data(), order.data(), out.data()}, 0);
}

TEST(HostKernelsWithAsanDeathTest, end_the_program_where_they_read_behind_a_tensor) {
  for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64}) {
    gather(*kernels, 2);
    EXPECT_DEATH(gather(*kernels, 3), "AddressSanitizer");
  }
}

}  // namespace
}  // namespace ingot::kernels::gpu
