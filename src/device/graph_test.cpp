// Graphs on the emulated device: replays compute what the work computes, what must not be captured throws, and memory is the graph's.
#include "device/graph.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>

#include <cmath>

#include "device/stream.h"
#include "device/virtual_device.h"

namespace ingot::device {
namespace {

const at::Device kDevice = emulated_device(5);
const auto kOptions = at::TensorOptions().device(kDevice);

float first_of(const at::Tensor& tensor) { return tensor[0].item<float>(); }

TEST(Graph, does_nothing_when_captured_and_the_work_each_time_it_is_replayed) {
  const auto in = at::full({64}, 3.0, kOptions), sum = at::zeros({64}, kOptions);
  at::Tensor out;
  Graph graph(kDevice);
  graph.capture([&] {
    const auto square = in * in;
    out = square + 1;
    sum.add_(square);
  });
  EXPECT_EQ(first_of(sum), 0);
  EXPECT_TRUE(std::isnan(first_of(out)));
  for (const float value : {2.0F, 5.0F}) {
    in.fill_(value);
    graph.replay();
    EXPECT_EQ(first_of(out), value * value + 1);
  }
  EXPECT_EQ(first_of(sum), 4 + 25);
}

TEST(Graph, of_a_backward_pass_adds_to_the_same_gradient) {
  const auto weight = at::ones({8, 8}, kOptions).set_requires_grad(true), gradient = at::zeros({8, 8}, kOptions);
  const auto in = at::ones({4, 8}, kOptions);
  Graph graph(kDevice);
  graph.capture([&] {
    at::matmul(in, weight).sum().backward();
    const at::NoGradGuard no_grad;
    gradient.add_(weight.grad());
    weight.mutable_grad().reset();
  });
  for (int i = 0; i < 3; ++i) graph.replay();
  EXPECT_EQ(first_of(gradient.flatten()), 3 * 4);
}

TEST(Graph, has_what_streams_do_that_wait_for_its_own_and_refuses_what_comes_from_outside) {
  const auto x = at::ones({64}, kOptions);
  at::Tensor doubled;
  const auto side = new_stream(kDevice);
  Graph graph(kDevice);
  c10::Event within(kDevice.type());
  graph.capture([&] {
    const auto own = current_stream(kDevice);
    c10::Event begin(kDevice.type());
    begin.record(own);
    begin.block(side);
    {
      const c10::StreamGuard guard(side);
      doubled = x * 2;
    }
    within.record(side);
    within.block(own);
    x.add_(doubled);
  });
  graph.replay();
  EXPECT_EQ(first_of(x), 3);
  EXPECT_ANY_THROW(within.block(current_stream(kDevice)));  // its place was in the capture

  c10::Event before(kDevice.type());
  before.record(side);
  Graph other(kDevice);
  EXPECT_ANY_THROW(other.capture([&] { before.block(current_stream(kDevice)); }));
  EXPECT_EQ(first_of(at::ones({2}, kOptions)), 1);  // the device goes on
}

TEST(Graph, refuses_a_host_that_waits) {
  const auto x = at::ones({64}, kOptions);
  const auto refused = [&](const std::function<void()>& work) {
    Graph graph(kDevice);
    try {
      graph.capture(work);
    } catch (const c10::Error& error) {
      return std::string(error.what()).find("captured for a graph") != std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused([&] { x.sum().item(); }));
  EXPECT_TRUE(refused([&] { x.cpu(); }));
  EXPECT_TRUE(refused([&] { x.nonzero(); }));
  EXPECT_TRUE(refused([&] { x.copy_(at::ones({64})); }));
  EXPECT_TRUE(refused([&] { synchronize(kDevice); }));
  EXPECT_FALSE(refused([&] { x.add_(1); }));
}

TEST(Graph, keeps_its_memory_from_others_until_it_ends) {
  constexpr int64_t kElements = 1 << 12;
  const auto in = at::ones({kElements}, kOptions);
  const int64_t before = memory_use(kDevice).allocated_bytes;
  at::Tensor out;
  {
    Graph graph(kDevice);
    graph.capture([&] {
      auto x = in + 1;
      for (int i = 0; i < 4; ++i) x = x + 1;  // two of them live at a time
      out = x.sum().reshape({1});
    });
    EXPECT_GE(graph.kept_bytes(), 2 * kElements * 4 - 4);
    EXPECT_LE(graph.kept_bytes(), 2 * kElements * 4 + 64);
    EXPECT_EQ(memory_use(kDevice).allocated_bytes - before, graph.kept_bytes() + static_cast<int64_t>(out.nbytes()));
    // Whoever allocates now gets other memory: it would have changed.
    std::vector<at::Tensor> others;
    for (int i = 0; i < 16; ++i) others.push_back(at::full({kElements}, 7, kOptions));
    graph.replay();
    EXPECT_EQ(first_of(out), 6 * kElements);
    for (const auto& other : others) EXPECT_TRUE(other.eq(7).all().item<bool>());
    // A second one beside it needs no more than it has.
    Graph second(kDevice, &graph);
    second.capture([&] { in.add_(in + 1); });
    EXPECT_EQ(second.kept_bytes(), 0);
  }
  out.reset();
  EXPECT_EQ(memory_use(kDevice).allocated_bytes, before);
}

}  // namespace
}  // namespace ingot::device
