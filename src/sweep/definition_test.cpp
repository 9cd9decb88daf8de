// What a sweep's file means, before anything runs.
#include "sweep/definition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"

namespace ingot::sweep {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

Definition read(const std::string& text) {
  const fs::path file = fs::path(::testing::TempDir()) / fmt::format("ingot_sweep_{}.toml", getpid());
  base::write_file_atomically(file, text);
  auto definition = read_definition(file);
  fs::remove(file);
  return definition;
}

std::string refusal_of(const std::string& text) {
  try {
    trials_of(read(text));
  } catch (const base::ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

const std::string kHead = "config = \"configs/zaya1-nano.toml\"\n";

TEST(Definition, a_grid_is_every_combination_in_order) {
  const auto d = read(kHead +
                      "[[settings]]\nname = \"optimizer.lr\"\nlow = 1e-4\nhigh = 1e-2\npoints = 3\n"
                      "[[settings]]\nname = \"optimizer.name\"\nvalues = [\"muon\", \"adamw\"]\n");
  const auto trials = trials_of(d);
  ASSERT_EQ(trials.size(), 6u);
  EXPECT_EQ(trials[0].name, "000");
  EXPECT_EQ(trials[0].values, (std::vector<std::string>{"0.0001", "muon"}));
  EXPECT_EQ(trials[3].values, (std::vector<std::string>{"0.001", "adamw"}));
  EXPECT_EQ(trials[5].values, (std::vector<std::string>{"0.01", "adamw"}));
  EXPECT_EQ(settings_of(d, trials[3]), (std::vector<std::string>{"optimizer.lr=0.001", "optimizer.name=adamw"}));
}

TEST(Definition, random_values_fill_their_range_and_come_again) {
  const auto text = kHead +
                    "search = \"random\"\nruns = 400\nseed = 7\n[[settings]]\nname = \"optimizer.lr\"\nlow = 1e-4\nhigh = 1e-2\n"
                    "[[settings]]\nname = \"model.layers\"\nlow = 2\nhigh = 5\nscale = \"linear\"\ninteger = true\n";
  const auto trials = trials_of(read(text)), again = trials_of(read(text));
  ASSERT_EQ(trials.size(), 400u);
  int below = 0;
  std::set<std::string> layers;
  for (size_t i = 0; i < trials.size(); ++i) {
    EXPECT_EQ(trials[i].values, again[i].values);
    const double lr = *base::parse_number(trials[i].values[0]);
    EXPECT_TRUE(lr >= 1e-4 && lr <= 1e-2) << lr;
    below += lr < 1e-3 ? 1 : 0;
    layers.insert(trials[i].values[1]);
  }
  EXPECT_NEAR(below, 200, 50);  // as many in each decade
  EXPECT_EQ(layers, (std::set<std::string>{"2", "3", "4", "5"}));
}

TEST(Definition, says_what_is_wrong) {
  EXPECT_THAT(refusal_of("[[settings]]\nname = \"optimizer.lr\"\nvalues = [\"1\"]\n"), HasSubstr("config is empty"));
  EXPECT_THAT(refusal_of(kHead), HasSubstr("nothing to try"));
  EXPECT_THAT(refusal_of(kHead + "[[settings]]\nname = \"optimizer.lr\"\n"), HasSubstr("needs either values"));
  EXPECT_THAT(refusal_of(kHead + "[[settings]]\nname = \"optimizer.lr\"\nlow = 2\nhigh = 1\npoints = 3\n"), HasSubstr("not below"));
  EXPECT_THAT(refusal_of(kHead + "[[settings]]\nname = \"optimizer.lr\"\nlow = -1\nhigh = 1\npoints = 3\n"), HasSubstr("no logarithm"));
  EXPECT_THAT(refusal_of(kHead + "[[settings]]\nname = \"optimizer.lr\"\nlow = 1\nhigh = 2\n"), HasSubstr("points"));
  EXPECT_THAT(refusal_of(kHead + "serch = \"grid\"\n"), HasSubstr("search"));
  const std::string one = "[[settings]]\nname = \"a\"\nvalues = [\"1\"]\n";
  EXPECT_THAT(refusal_of(kHead + one + one), HasSubstr("twice"));
}

}  // namespace
}  // namespace ingot::sweep
