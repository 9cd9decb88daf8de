#include "train/spike_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"

namespace ingot::train {
namespace {

using ::testing::HasSubstr;

// A loss that falls as losses do, with the noise of batches; norms with a heavier tail.
struct Curve {
  std::mt19937 random{5};
  int64_t step = 0;
  double loss() { return 2 + 6 * std::pow(static_cast<double>(++step), -0.3) + std::normal_distribution<double>(0, 0.04)(random); }
  double norm() { return std::exp(std::normal_distribution<double>(-0.5, 0.15)(random)); }
};

TEST(SpikeWatch, names_spikes_of_loss_and_norm_and_nothing_else) {
  Curve curve;
  SpikeWatch watch(8, 128, 10);
  int64_t false_alarms = 0;
  for (int i = 0; i < 100'000; ++i) false_alarms += watch.take(curve.loss(), curve.norm()).empty() ? 0 : 1;
  EXPECT_LE(false_alarms, 2) << "of 100,000 steps of noise";
  EXPECT_THAT(watch.take(curve.loss() + 1, curve.norm()), HasSubstr("loss "));
  EXPECT_THAT(watch.take(curve.loss(), 20), HasSubstr("gradient norm 20, the 128 steps before have"));
  EXPECT_EQ(watch.take(curve.loss(), curve.norm()), "");
  EXPECT_EQ(watch.take(curve.loss() - 1, 0.01), "") << "less is no spike";
}

TEST(SpikeWatch, says_nothing_before_it_knows_enough) {
  SpikeWatch watch(6, 128, 10);
  for (int i = 0; i < SpikeWatch::kFewest; ++i) EXPECT_EQ(watch.take(i % 3 == 0 ? 100 : 1, 1), "") << i;
  SpikeWatch alike(6, 128, 10);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(alike.take(1, 1), "");
  EXPECT_NE(alike.take(1.1, 1), "");
}

TEST(SpikeWatch, takes_a_new_level_for_one) {
  Curve curve;
  SpikeWatch watch(8, 128, 10);
  for (int i = 0; i < 1000; ++i) watch.take(curve.loss(), curve.norm());
  for (int i = 0; i < 10; ++i) EXPECT_NE(watch.take(curve.loss() + 2, curve.norm()), "") << i;
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(watch.take(curve.loss() + 2, curve.norm()), "") << i;
}

TEST(SpikeWatch, goes_on_from_a_checkpoint_as_if_it_had_never_stopped) {
  Curve curve;
  SpikeWatch whole(3, 64, 10), first(3, 64, 10);
  for (int i = 0; i < 500; ++i) {
    const double loss = curve.loss(), norm = curve.norm();
    SpikeWatch second(3, 64, 10);
    second.restore(first.to_json(), "here");
    const auto said = whole.take(loss, norm);
    EXPECT_EQ(second.take(loss, norm), said) << i;
    first = second;
  }
  SpikeWatch shorter(3, 32, 10);
  shorter.restore(first.to_json(), "here");
  EXPECT_EQ(shorter.take(2, 0.5), "");
  shorter.restore("", "here");
  for (const char* wrong : {"{", "[]", R"({"losses":[1],"norms":[],"in_a_row":0})", R"({"losses":["x"],"norms":[1],"in_a_row":0})",
                            R"({"losses":[],"norms":[],"in_a_row":-1})"})
    EXPECT_THROW(shorter.restore(wrong, "here"), base::CheckpointError) << wrong;
}

}  // namespace
}  // namespace ingot::train
