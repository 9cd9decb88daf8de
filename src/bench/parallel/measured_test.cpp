// What real ranks say to each other under every method is what the traces of the same layer say (tested against the papers' formulas in
// traffic_test.cpp), to the last byte and call.
#include "bench/parallel/measured.h"

#include <gmock/gmock.h>

#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "bench/parallel/layer_program.h"
#include "device/virtual_device.h"

namespace ingot::bench {
namespace {

using schedule::Layer;
using schedule::Layout;
using schedule::Method;
using schedule::Pass;

using DeviceOf = std::function<at::Device(int rank)>;

schedule::Result measured(
    const Layout& layout, const DeviceOf& device_of = [](int) { return at::Device(at::kCPU); }) {
  schedule::Result result;
  std::mutex mutex;
  comm::run_ranks(layout.ranks, [&](comm::World& world) {
    auto own = measure_parallel(layout, 1, world, device_of(world.rank()));
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) result = std::move(own);
  });
  return result;
}

Layout layout_of(Method method, Layer layer, Pass pass, int ranks) {
  Layout layout{.method = method, .layer = layer, .pass = pass, .ranks = ranks};
  layout.sizes = {.hidden = 32, .heads = 8, .kv_heads = 4, .head_dim = 4, .ffn = 64, .batch = 2, .seq = 64, .dtype = "fp32"};
  if (method == Method::tp_sp) layout.tensor_ranks = 2;
  if (layout.is_linear()) layout.sizes.kv_heads = 8;
  return layout;
}

std::string text_of(const schedule::Traffic& traffic) {
  std::string text;
  for (const auto& [kind, t] : traffic)
    text += fmt::format("{} {} calls, {} sent, {} received; ", kind, t.calls, t.sent_bytes, t.received_bytes);
  return text;
}

class ParallelMethods : public ::testing::TestWithParam<Method> {};

TEST_P(ParallelMethods, send_what_their_traces_say) {
  const auto method = GetParam();
  const bool is_linear = method == Method::lasp1 || method == Method::lasp2 || method == Method::zeco;
  for (const int ranks : {2, 4}) {
    if (method == Method::tp_sp && ranks == 2) continue;
    for (const auto layer : {is_linear ? Layer::linear_attention : Layer::attention, Layer::mlp, Layer::block})
      for (const auto pass : {Pass::forward, Pass::backward, Pass::both}) {
        if (is_linear && layer == Layer::mlp) continue;
        const auto layout = layout_of(method, layer, pass, ranks);
        EXPECT_EQ(text_of(measured(layout).ops), text_of(schedule::traffic_of(trace_layer(layout, device::Target::cpu).program)))
            << schedule::name_of(layer) << " " << schedule::name_of(pass) << ", " << ranks << " ranks";
      }
  }
}

TEST_P(ParallelMethods, run_on_devices) {
  const auto method = GetParam();
  const auto layout = layout_of(method, Layer::block, Pass::both, method == Method::tp_sp ? 4 : 2);
  const auto result = measured(layout, device::emulated_device);
  EXPECT_EQ(text_of(result.ops), text_of(schedule::traffic_of(trace_layer(layout, device::Target::gpu).program)));
  EXPECT_GT(result.time_ms, 0);
  EXPECT_GT(result.peak_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(All, ParallelMethods, ::testing::ValuesIn(schedule::all_methods()), [](const auto& info) {
  auto name = schedule::name_of(info.param);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '+' || c == '-'; }, '_');
  return name;
});

// TSP (arXiv 2604.26294): of what one rank holds alone 1/D, and two parts of the weights, one in use and one under way.
TEST(Parallel, tsp_holds_its_share_and_two_parts_of_the_weights) {
  for (const auto pass : {Pass::forward, Pass::both}) {
    Layout layout = layout_of(Method::tsp, Layer::block, pass, 1);
    layout.sizes = {.hidden = 256, .heads = 8, .kv_heads = 8, .head_dim = 32, .ffn = 1024, .batch = 1, .seq = 2048, .dtype = "fp32"};
    const int64_t alone = measured(layout).peak_bytes, largest_layer = 3 * 256 * 1024 * 4;
    for (const int ranks : {2, 4}) {
      layout.ranks = ranks;
      EXPECT_LE(measured(layout).peak_bytes, (alone + 2 * largest_layer) / ranks)
          << schedule::name_of(pass) << ", " << ranks << " ranks; alone " << alone;
    }
  }
}

TEST(Parallel, what_cannot_be_cut_is_refused_by_all_ranks) {
  auto layout = layout_of(Method::tsp, Layer::mlp, Pass::forward, 2);
  layout.sizes.ffn = 65;
  comm::run_ranks(2, [&](comm::World& world) { EXPECT_THROW(measure_parallel(layout, 1, world), base::ConfigError); });
}

TEST(Parallel, a_sweep_survives_json) {
  schedule::Sweep sweep{.methods = {Method::tp, Method::tsp},
                        .ranks = {2},
                        .seqs = {32, 64},
                        .passes = {Pass::both},
                        .base = layout_of(Method::tp, Layer::block, Pass::both, 2)};
  schedule::SweepResult result;
  comm::run_ranks(2, [&](comm::World& world) {
    auto own = measure_sweep(sweep, {Layer::block}, 1, world, at::kCPU, [](size_t, size_t, const Layout&) { return true; });
    if (world.rank() == 0) result = std::move(own);
  });
  ASSERT_EQ(result.results.size(), 4u);
  const auto again = sweep_from_json(nlohmann::json::parse(schedule::to_json(result, "measured", "here")));
  ASSERT_EQ(again.results.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(again.results[i].ops, result.results[i].ops);
    EXPECT_NEAR(again.results[i].time_ms, result.results[i].time_ms, 1e-6);
  }
  add_crossovers(result);
  EXPECT_THAT(schedule::to_table(result), ::testing::HasSubstr("tsp"));
}

}  // namespace
}  // namespace ingot::bench
