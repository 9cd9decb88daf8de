// What goes to the host and back is what a stream had to do with it, and nobody waits who need not.
#include "device/host_stash.h"

#include <gtest/gtest.h>

#include "device/host_copies.h"
#include "device/stream.h"
#include "device/tracer.h"
#include "device/virtual_device.h"

namespace ingot::device {
namespace {

const at::Device kDevice = emulated_device(4);

at::Tensor ones() { return at::ones({64}, at::TensorOptions().device(kDevice)); }

TEST(HostStash, takes_what_a_tensor_was_when_it_was_put_and_brings_it_back) {
  HostStash stash(kDevice);
  auto x = ones();
  synchronize(kDevice);
  x.add_(1);
  auto stored = stash.put(x);
  stored.arrived->synchronize();
  EXPECT_TRUE(at::equal(stored.host, at::full({64}, 2.0F)));
  stash.let_go(stored);
  x.reset();
  const auto back = stash.take(stash.bring(stored)) * 3;
  EXPECT_TRUE(at::equal(back.cpu(), at::full({64}, 6.0F)));
}

// Freed memory is NaN when the stream that had it comes to that point: without let_go that is before the copy.
TEST(HostStash, lets_go_of_memory_behind_the_copy) {
  for (const bool waits : {false, true}) {
    HostStash stash(kDevice);
    auto x = ones() + 1;
    const auto stored = stash.put(x);
    if (waits) stash.let_go(stored);
    x.reset();
    current_stream(kDevice).synchronize();
    stored.arrived->synchronize();
    EXPECT_EQ(at::equal(stored.host, at::full({64}, 2.0F)), waits);
  }
}

TEST(HostStash, puts_into_memory_that_is_there) {
  HostStash stash(kDevice);
  const auto x = ones();
  const auto host = stash.settle(x);
  EXPECT_TRUE(at::equal(host, at::full({64}, 1.0F)));
  const auto stored = stash.put(x + 1, host);
  stored.arrived->synchronize();
  EXPECT_TRUE(stored.host.is_same(host) && at::equal(host, at::full({64}, 2.0F)));
}

TEST(HostStash, makes_the_host_wait_for_nothing) {
  Tracer tracer(kDevice);
  HostStash stash(kDevice);
  const auto x = ones();
  const auto back = stash.take(stash.bring(stash.put(x))) + 1;
  EXPECT_EQ(tracer.finish().waits(), 0);
  EXPECT_TRUE(at::equal(back.cpu(), at::full({64}, 2.0F)));
}

TEST(HostStash, on_a_counting_device_holds_no_memory_of_either) {
  const CountingDevice counting;
  HostStash stash(counting.device());
  constexpr int64_t kTebi = int64_t{1} << 40;
  Tracer tracer(counting.device());
  auto x = at::empty({kTebi}, at::TensorOptions().dtype(at::kByte).device(counting.device()));
  const auto stored = stash.put(x);
  x.reset();
  EXPECT_EQ(memory_use(counting.device()).allocated_bytes, 0);
  const auto back = stash.take(stash.bring(stored));
  EXPECT_EQ(back.numel(), kTebi);
  const auto trace = tracer.finish();
  ASSERT_EQ(trace.host_accesses.size(), 2U);
  for (const auto& access : trace.host_accesses) EXPECT_EQ(access.bytes, kTebi);
  EXPECT_EQ(trace.waits(), 0);
}

TEST(HostCopies, read_what_the_stream_they_follow_had_to_do) {
  const HostCopies copies(kDevice);
  auto x = ones();
  synchronize(kDevice);
  x.add_(1);
  const auto host = copies.allocate(64 * sizeof(float));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(host.get()) % 4096, 0U);
  const auto* from = static_cast<const std::byte*>(x.const_data_ptr());
  const auto first = [&] { return *reinterpret_cast<const float*>(host.get()); };
  copies.copy(host.get(), from, 64 * sizeof(float));
  EXPECT_EQ(first(), 1) << "nobody said to follow";
  copies.follow_current_stream();
  x.add_(1);
  copies.copy(host.get(), from, 64 * sizeof(float));
  EXPECT_EQ(first(), 2);
}

}  // namespace
}  // namespace ingot::device
