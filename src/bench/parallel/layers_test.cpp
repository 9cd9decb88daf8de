#include "bench/parallel/layers.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace ingot::bench {
namespace {

using schedule::Layer;
using schedule::Method;
using ::testing::Contains;
using ::testing::Not;

schedule::Sweep all_methods() {
  schedule::Sweep sweep;
  sweep.methods = schedule::all_methods();
  return sweep;
}

TEST(SweepsByLayer, a_layer_has_the_methods_that_differ_for_it) {
  const auto sweeps = by_layer(all_methods(), {"attention", "mlp", "linear_attention", "block"});
  ASSERT_EQ(sweeps.size(), 4u);
  EXPECT_EQ(sweeps[0].base.layer, Layer::attention);
  EXPECT_THAT(sweeps[0].methods, Contains(Method::ring));
  EXPECT_THAT(sweeps[0].methods, Not(Contains(Method::lasp2)));
  EXPECT_THAT(sweeps[1].methods, Not(Contains(Method::ring)));
  EXPECT_THAT(sweeps[1].methods, Not(Contains(Method::ulysses)));
  EXPECT_THAT(sweeps[2].methods, ::testing::UnorderedElementsAre(Method::lasp1, Method::lasp2, Method::zeco));
  EXPECT_EQ(sweeps[3].methods, schedule::all_methods());
}

TEST(SweepsByLayer, without_layers_all_are_meant) { EXPECT_EQ(by_layer(all_methods(), {}).size(), 4u); }

TEST(SweepsByLayer, a_layer_without_methods_is_left_out_and_none_at_all_is_refused) {
  auto sweep = all_methods();
  sweep.methods = {Method::lasp2};
  EXPECT_EQ(by_layer(sweep, {"mlp", "linear_attention"}).size(), 1u);
  EXPECT_THROW(by_layer(sweep, {"mlp"}), base::UsageError);
}

}  // namespace
}  // namespace ingot::bench
