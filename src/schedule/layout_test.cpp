#include "schedule/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "schedule/traffic.h"

namespace ingot::schedule {
namespace {

Layout layout_of(Method method, Layer layer, Pass pass, int ranks, int tensor_ranks = 1) {
  const Sizes sizes{.hidden = 48, .heads = 24, .kv_heads = 12, .head_dim = 8, .ffn = 96, .batch = 2, .seq = 96, .dtype = "bf16"};
  return {.method = method, .layer = layer, .pass = pass, .sizes = sizes, .ranks = ranks, .tensor_ranks = tensor_ranks};
}

TEST(Layout, refusals_say_what_does_not_fit) {
  const auto expect = [](const Layout& layout, const std::string& words) {
    try {
      check(layout);
      FAIL() << words;
    } catch (const base::ConfigError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(words));
    }
  };
  auto layout = layout_of(Method::tp, Layer::block, Pass::both, 5);
  expect(layout, "heads = 24 is not a multiple of 5");
  layout = layout_of(Method::tsp, Layer::block, Pass::both, 8);
  expect(layout, "kv_heads = 12 must be a multiple or a divisor of the ranks");
  layout = layout_of(Method::lasp2, Layer::attention, Pass::both, 4);
  expect(layout, "lasp2 has no schedule for softmax attention");
  layout = layout_of(Method::tsp, Layer::linear_attention, Pass::both, 4);
  expect(layout, "tsp has no schedule for linear attention");
  layout = layout_of(Method::ring, Layer::block, Pass::both, 4);
  layout.sizes.seq = 100;
  expect(layout, "seq = 100 is not a multiple of 8");
  layout = layout_of(Method::tp_sp, Layer::block, Pass::both, 4, 3);
  expect(layout, "tensor_ranks = 3 does not divide 4 ranks");
  layout = layout_of(Method::tp, Layer::block, Pass::both, 4);
  layout.sizes.batch = 0;
  expect(layout, "batch = 0");
  try {
    method_from_name("tps");
    FAIL();
  } catch (const base::ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("unknown method 'tps'; did you mean 'tp'?"));
  }
}

TEST(Layout, names_come_back) {
  for (const auto method : all_methods()) EXPECT_EQ(method_from_name(name_of(method)), method);
  EXPECT_EQ(pass_from_name("both"), Pass::both);
  EXPECT_EQ(layer_from_name("linear_attention"), Layer::linear_attention);
  EXPECT_EQ(layout_of(Method::tp_sp, Layer::block, Pass::both, 8, 4).label(), "tp4+sp2");
}

TEST(Traffic, sums_of_uneven_slices_count_as_the_communicator_counts) {
  // 10 elements over 3 ranks: slices of 3, 3, 4.
  const Communication message{Kind::all_reduce, {0, 3, 1}, 40, 4};
  EXPECT_EQ(traffic_of(message, 0).sent_bytes, (7 + 3 * 2) * 4);
  EXPECT_EQ(traffic_of(message, 2).sent_bytes, (6 + 4 * 2) * 4);
}

}  // namespace
}  // namespace ingot::schedule
