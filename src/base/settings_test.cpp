#include "base/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace ingot::base {
namespace {

using ::testing::HasSubstr;

struct Phase {
  int64_t tokens = 5;
  std::string name = "main";
};
void declare_phase(SettingsTable& table, Phase& phase) {
  table.add("tokens", phase.tokens, at_least(1), "how many tokens");
  table.add("name", phase.name, "its name");
}

struct Example {
  int64_t steps = 10;
  double lr = 1e-3;
  bool nesterov = true;
  std::string precision = "fp32";
  std::vector<std::string> files;
  std::vector<double> betas;
  std::vector<Phase> phases;
  SettingsTable table;
  Example() {
    table.add("train.steps", steps, at_least(1), "optimizer steps");
    table.add("optimizer.lr", lr, NumberRange{0, 1}, "peak learning rate");
    table.add("optimizer.nesterov", nesterov, "Nesterov momentum");
    table.add("train.precision", precision, {"fp64", "fp32", "bf16"}, "compute dtype");
    table.add("data.files", files, "token files");
    table.add("optimizer.betas", betas, NumberRange{0, 1}, "decays");
    table.add_list("train.phases", phases, declare_phase, "phases in order");
  }
};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Settings, read_from_toml_and_written_back_give_the_same_values) {
  Example a;
  a.table.load_toml(
      "[train]\nsteps = 20\nprecision = \"bf16\"\n[optimizer]\nlr = 0.01\nnesterov = false\n"
      "[data]\nfiles = [\"x,y\", \"z\"]\n[[train.phases]]\ntokens = 7\n[[train.phases]]\nname = \"long\\\"er\"\n",
      "a.toml");
  EXPECT_EQ(a.steps, 20);
  EXPECT_EQ(a.files, (std::vector<std::string>{"x,y", "z"}));
  ASSERT_EQ(a.phases.size(), 2u);
  Example b;
  b.table.load_toml(a.table.dump_toml(), "dump");
  EXPECT_EQ(b.table.dump_toml(), a.table.dump_toml());
  EXPECT_EQ(b.phases[1].name, "long\"er");
  EXPECT_EQ(b.phases[0].tokens, 7);
}

TEST(Settings, unknown_name_is_refused_with_the_nearest) {
  Example e;
  EXPECT_THAT(error_of([&] { e.table.set("train.step", "3", "--set"); }), HasSubstr("did you mean 'train.steps'?"));
  EXPECT_THAT(error_of([&] { e.table.load_toml("[train]\nstpes = 3", "c.toml"); }),
              AllOf(HasSubstr("c.toml:2:"), HasSubstr("train.steps")));
}

TEST(Settings, unknown_name_like_no_other_still_names_one_and_where_all_are) {
  Example e;
  EXPECT_THAT(error_of([&] { e.table.set("colour", "3", "--set"); }),
              AllOf(HasSubstr("the nearest is '"), HasSubstr("ingot train --settings")));
}

TEST(Settings, impossible_values_name_the_range) {
  Example e;
  EXPECT_THAT(error_of([&] { e.table.set("train.steps", "0", "--set"); }), HasSubstr("integer from 1"));
  EXPECT_THAT(error_of([&] { e.table.set("optimizer.lr", "nan", "--set"); }), HasSubstr("number from 0 to 1"));
  EXPECT_THAT(error_of([&] { e.table.set("train.precision", "bf61", "--set"); }), HasSubstr("did you mean 'bf16'"));
  EXPECT_THAT(error_of([&] { e.table.load_toml("train = 3", "c.toml"); }), HasSubstr("unknown setting 'train'"));
  EXPECT_THAT(error_of([&] { e.table.load_toml("[train\n", "c.toml"); }), HasSubstr("c.toml:1"));
}

TEST(Settings, lists_of_numbers_are_read_from_toml_and_the_command_line_and_written_back) {
  Example a, b;
  a.table.load_toml("[optimizer]\nbetas = [0.1, 1, 1e-3]", "a.toml");
  EXPECT_EQ(a.betas, (std::vector<double>{0.1, 1, 1e-3}));
  EXPECT_THAT(a.table.dump_changed_toml(), HasSubstr("betas = [0.1, "));
  b.table.load_toml(a.table.dump_toml(), "dump");
  EXPECT_EQ(b.betas, a.betas);
  b.table.set("optimizer.betas", "0.5,0.25", "--set");
  EXPECT_EQ(b.betas, (std::vector<double>{0.5, 0.25}));
  for (const char* wrong : {"[0.1, 2]", "[0.1, nan]", "[0.1, \"x\"]", "[[0.1]]"})
    EXPECT_THAT(error_of([&] { b.table.load_toml(std::string("[optimizer]\nbetas = ") + wrong, "b.toml"); }),
                AllOf(HasSubstr("optimizer.betas"), HasSubstr("from 0 to 1")))
        << wrong;
  EXPECT_THAT(error_of([&] { b.table.set("optimizer.betas", "0.5,x", "--set"); }), HasSubstr("from 0 to 1"));
  EXPECT_EQ(b.betas, (std::vector<double>{0.5, 0.25}));
}

TEST(Settings, suffixes_are_understood) {
  Example e;
  e.table.set("train.steps", "4K", "--set");
  EXPECT_EQ(e.steps, 4000);
  e.table.set("train.steps", "4Ki", "--set");
  EXPECT_EQ(e.steps, 4096);
}

}  // namespace
}  // namespace ingot::base
