// Streams of emulated devices: who waits gets what was computed, and who does not gets what was there before, each time.
#include "device/stream.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <cmath>

#include "device/tracer.h"
#include "device/virtual_device.h"

namespace ingot::device {
namespace {

const at::Device kDevice = emulated_device(3);

at::Tensor ones() { return at::ones({64}, at::TensorOptions().device(kDevice)); }
float first_of(const at::Tensor& tensor) { return tensor[0].item<float>(); }
c10::Event event_on(const c10::Stream& stream) {
  c10::Event event(kDevice.type());
  event.record(stream);
  return event;
}

TEST(Streams, work_is_done_when_somebody_asks_for_it) {
  bool is_done = false;
  enqueue(current_stream(kDevice), [&] { is_done = true; });
  const auto x = ones() + 1;
  EXPECT_FALSE(is_done);
  EXPECT_EQ(first_of(x), 2);
  EXPECT_TRUE(is_done);
}

TEST(Streams, a_missing_wait_for_another_stream_reads_what_was_there) {
  for (const bool waits : {false, true}) {
    auto x = ones();
    synchronize(kDevice);
    const auto side = new_stream(kDevice);
    {
      const c10::StreamGuard guard(side);
      x.add_(41);
    }
    if (waits) event_on(side).block(current_stream(kDevice));
    EXPECT_EQ(first_of(x.clone()), waits ? 42 : 1);
    synchronize(kDevice);
    EXPECT_EQ(first_of(x), 42);
  }
}

// The other way round: what a copy on a stream of its own reads before the computation is there.
TEST(Streams, a_missing_wait_for_the_default_stream_reads_what_was_there) {
  for (const bool waits : {false, true}) {
    auto x = ones();
    synchronize(kDevice);
    x.add_(41);
    const auto side = new_stream(kDevice);
    if (waits) event_on(current_stream(kDevice)).block(side);
    const c10::StreamGuard guard(side);
    EXPECT_EQ(first_of(x.clone()), waits ? 42 : 1);
  }
}

// A copy of what is there, and the stream that makes it when somebody waits.
std::pair<c10::Stream, at::Tensor> copy_under_way(const at::Tensor& x) {
  synchronize(kDevice);
  const auto side = new_stream(kDevice);
  const c10::StreamGuard guard(side);
  return {side, x.clone()};
}

// A snapshot that is still being copied when the next update writes.
TEST(Streams, a_missing_wait_before_a_write_shows_in_what_is_read_late) {
  for (const bool waits : {false, true}) {
    auto x = ones();
    const auto [side, copy] = copy_under_way(x);
    if (waits) event_on(side).block(current_stream(kDevice));
    x.zero_();
    static_cast<void>(first_of(x));
    synchronize(kDevice);
    EXPECT_EQ(first_of(copy), waits ? 1 : 0);
  }
}

TEST(Streams, an_event_stands_for_what_was_there_when_it_was_recorded) {
  const auto side = new_stream(kDevice);
  int done = 0;
  enqueue(side, [&] { ++done; });
  const auto event = event_on(side);
  enqueue(side, [&] { ++done; });
  event.synchronize();
  EXPECT_EQ(done, 1);
  synchronize(kDevice);
  EXPECT_EQ(done, 2);
}

TEST(Streams, who_asks_again_and_again_gets_there) {
  const auto side = new_stream(kDevice);
  for (int i = 0; i < 3; ++i) enqueue(side, [] {});
  const auto event = event_on(side);
  int asked = 1;
  while (!event.query()) ++asked;
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(side.query());
}

TEST(Streams, memory_that_another_stream_still_reads_is_used_again_unless_it_says_so) {
  for (const bool says : {false, true}) {
    auto x = ones();
    const auto [side, copy] = copy_under_way(x);
    if (says) x.record_stream(side);
    x = at::Tensor();
    const auto other = ones().mul_(7);
    static_cast<void>(first_of(other));
    synchronize(kDevice);
    EXPECT_EQ(first_of(copy) == 1, says) << first_of(copy);
  }
}

TEST(Streams, what_nobody_wrote_is_not_a_number) {
  { const auto x = ones(); }
  synchronize(kDevice);
  EXPECT_TRUE(std::isnan(first_of(at::empty({64}, at::TensorOptions().device(kDevice)))));
}

TEST(Streams, a_copy_to_the_host_that_does_not_wait_is_there_after_a_synchronisation) {
  const auto x = ones();
  auto host = at::zeros({64});
  host.copy_(x, /*non_blocking=*/true);
  EXPECT_EQ(first_of(host), 0);
  synchronize(kDevice);
  EXPECT_EQ(first_of(host), 1);
  EXPECT_EQ(first_of(x.cpu()), 1);
}

TEST(Streams, a_copy_from_the_host_that_does_not_wait_reads_late) {
  for (const bool waits : {false, true}) {
    auto host = at::ones({64});
    const auto x = at::zeros({64}, at::TensorOptions().device(kDevice));
    x.copy_(host, /*non_blocking=*/!waits);
    host.fill_(5);
    EXPECT_EQ(first_of(x), waits ? 1 : 5);
  }
}

TEST(Streams, an_error_of_a_kernel_comes_to_who_asks) {
  const auto rows = at::full({1}, 1000, at::TensorOptions().device(kDevice).dtype(at::kLong));
  const auto picked = ones().index_select(0, rows);
  EXPECT_THROW(static_cast<void>(first_of(picked)), c10::Error);
  EXPECT_EQ(first_of(ones()), 1);
}

TEST(Streams, random_numbers_are_drawn_in_the_order_of_the_calls) {
  at::manual_seed(7);
  const auto there = at::empty({8}, at::TensorOptions().device(kDevice)).uniform_();
  const auto here = at::rand({8});
  at::manual_seed(7);
  EXPECT_TRUE(at::equal(there.cpu(), at::rand({8})));
  EXPECT_TRUE(at::equal(here, at::rand({8})));
}

TEST(Streams, a_synchronisation_is_a_wait_of_the_host) {
  Tracer tracer(kDevice);
  const auto x = ones();
  current_stream(kDevice).synchronize();
  event_on(current_stream(kDevice)).synchronize();
  const auto trace = tracer.finish();
  ASSERT_EQ(trace.waits(), 2);
  EXPECT_EQ(trace.names[static_cast<size_t>(trace.host_accesses[0].name)], "synchronize");
}

TEST(Streams, of_a_counting_device_have_nothing_to_do) {
  const CountingDevice counting;
  const auto side = new_stream(counting.device());
  const c10::StreamGuard guard(side);
  const auto x = at::ones({4}, at::TensorOptions().device(counting.device()));
  c10::Event event(counting.device().type());
  event.record(side);
  EXPECT_TRUE(event.query());
  EXPECT_TRUE(side.query());
  event.block(side);
}

}  // namespace
}  // namespace ingot::device
