// Collectives on emulated devices: like NCCL's they stand on a stream of their own, so a missing wait gives wrong numbers, each time.
#include "comm/stream_transfers.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "base/error.h"
#include "comm/world.h"
#include "device/virtual_device.h"

namespace ingot::comm {
namespace {

at::Tensor on(const World& world, std::vector<double> values) {
  return at::tensor(values, at::kDouble).to(device::emulated_device(world.rank()));
}
std::vector<double> values_of(const at::Tensor& tensor) {
  const auto host = tensor.cpu();
  return {host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel()};
}
using Values = std::vector<double>;

TEST(StreamTransfers, a_missing_wait_reads_what_was_there) {
  for (const bool waits : {false, true})
    run_ranks(3, [&](World& world) {
      const auto own = on(world, {1.0 + world.rank()}), all = on(world, {-1, -1, -1});
      auto work = world.everyone().start_all_gather(all, own);
      if (waits) work.wait();
      EXPECT_EQ(values_of(all), waits ? (Values{1, 2, 3}) : (Values{-1, -1, -1}));
      if (!waits) work.wait();
      EXPECT_EQ(values_of(all), (Values{1, 2, 3}));
    });
}

TEST(StreamTransfers, start_behind_what_the_stream_has_to_do) {
  run_ranks(2, [](World& world) {
    auto x = on(world, {1, 2});
    x.mul_(10);
    world.everyone().all_reduce(x);
    x.add_(1);
    EXPECT_EQ(values_of(x), (Values{21, 41}));
  });
}

TEST(StreamTransfers, a_wait_does_not_block_the_host) {
  std::promise<void> others;
  auto may_start = others.get_future().share();
  run_ranks(2, [&](World& world) {
    auto& group = world.everyone();
    if (world.rank() == 1) may_start.wait();
    auto x = on(world, {1});
    group.all_reduce(x);  // its stream waits: rank 1 has not begun
    x.add_(1);
    if (world.rank() == 0) others.set_value();
    EXPECT_EQ(values_of(x), (Values{3}));
  });
}

TEST(StreamTransfers, a_stream_that_did_not_wait_reads_what_was_there) {
  run_ranks(2, [](World& world) {
    auto x = on(world, {5});
    const auto side = device::new_stream(x.device());
    {
      const c10::StreamGuard guard(side);
      world.everyone().all_reduce(x);
    }
    EXPECT_EQ(values_of(x), (Values{5}));
    c10::Event event(x.device().type());
    event.record(side);
    event.block(device::current_stream(x.device()));
    EXPECT_EQ(values_of(x), (Values{10}));
  });
}

TEST(StreamTransfers, an_input_that_is_written_to_under_way_is_found) {
  run_ranks(2, [](World& world) {
    auto input = on(world, {1, 2}), output = on(world, {0});
    auto work = world.everyone().start_reduce_scatter(output, input);
    input.add_(1);
    work.wait();
    try {
      static_cast<void>(values_of(output));
      ADD_FAILURE() << "nobody noticed";
    } catch (const base::CommError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("its input was written to before it was waited for"));
    }
  });
}

TEST(StreamTransfers, of_every_kind_give_what_the_host_gets) {
  run_ranks(3, [](World& world) {
    auto& group = world.everyone();
    const int rank = world.rank(), next = (rank + 1) % 3, before = (rank + 2) % 3;
    const double r = rank;
    auto x = on(world, {r, 2});
    group.all_reduce(x, Reduction::max);
    EXPECT_EQ(values_of(x), (Values{2, 2}));
    x = on(world, {r});
    group.reduce(x, 1);
    EXPECT_EQ(values_of(x), (Values{rank == 1 ? 3. : r}));
    x = on(world, {r});
    group.broadcast(x, 2);
    EXPECT_EQ(values_of(x), (Values{2}));
    x = on(world, {0});
    group.reduce_scatter(x, on(world, {r, r + 1, r + 2}));
    EXPECT_EQ(values_of(x), (Values{3. + 3 * r}));
    x = on(world, {0, 0, 0});
    group.all_to_all(x, on(world, {10 * r, 10 * r + 1, 10 * r + 2}));
    EXPECT_EQ(values_of(x), (Values{r, 10 + r, 20 + r}));
    auto arriving = on(world, {0});
    auto receive = group.start_receive(arriving, before);
    group.send(on(world, {r}), next);
    EXPECT_EQ(values_of(arriving), (Values{0}));
    receive.wait();
    EXPECT_EQ(values_of(arriving), (Values{static_cast<double>(before)}));
    group.barrier();
  });
}

TEST(StreamTransfers, results_outlive_the_world) {
  at::Tensor result;
  run_ranks(2, [&](World& world) {
    auto x = on(world, {4});
    world.everyone().all_reduce(x);
    if (world.rank() == 0) result = x + 1;
  });
  EXPECT_EQ(values_of(result), (Values{9}));
}

TEST(StreamTransfers, a_handle_may_be_dropped) {
  const auto before = device::memory_use(device::emulated_device(0)).allocated_bytes;
  run_ranks(2, [](World& world) {
    for (int i = 0; i < 3; ++i) static_cast<void>(world.everyone().start_all_reduce(on(world, {1, 2, 3})));
    world.everyone().barrier();
  });
  device::synchronize(device::emulated_device(0));
  EXPECT_EQ(device::memory_use(device::emulated_device(0)).allocated_bytes, before);
}

}  // namespace
}  // namespace ingot::comm
