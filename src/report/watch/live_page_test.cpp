#include "report/watch/live_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "report/page/test_html.h"
#include "report/run/fake_run.h"
#include "report/sweep/results.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class LivePageTest : public ::testing::Test {
 protected:
  fs::path folder = fs::temp_directory_path() / ("ingot_live_page_" + std::to_string(::getpid()));
  void SetUp() override { fs::create_directories(folder); }
  void TearDown() override { fs::remove_all(folder); }
  void add_line(const std::string& line) const { std::ofstream(folder / "run" / "metrics.jsonl", std::ios::app) << line; }
};

TEST_F(LivePageTest, is_made_again_when_a_file_has_changed_and_only_then) {
  write_fake_run(folder / "run", {.steps = 50, .finished = 20});
  LivePage live({folder / "run"}, 1);
  const auto first = live.current();
  EXPECT_EQ(unbalanced(first->whole), "");
  EXPECT_THAT(first->whole, AllOf(HasSubstr("<main>\n" + first->main + "</main>"), HasSubstr("data-tag=\"" + first->tag + "\""),
                                  HasSubstr("connect-src 'self'")));
  EXPECT_THAT(first->main, HasSubstr("is at step 20 of 50"));
  EXPECT_EQ(live.current(), first);
  add_line(R"({"step":21,"steps":50,"loss":3.5})"
           "\n");
  const auto second = live.current();
  EXPECT_NE(second->tag, first->tag);
  EXPECT_THAT(second->main, HasSubstr("is at step 21 of 50"));
  fs::last_write_time(folder / "run" / "run.json", fs::file_time_type::clock::now());
  EXPECT_EQ(live.current()->tag, second->tag) << "it says the same";
}

TEST_F(LivePageTest, takes_no_more_than_its_share_of_the_time) {
  write_fake_run(folder / "run", {.steps = 2000, .finished = 1000});
  LivePage live({folder / "run"}, 1e-6);
  const auto first = live.current();
  add_line("{}\n");
  EXPECT_EQ(live.current(), first);
}

TEST_F(LivePageTest, a_line_that_is_being_written_is_no_broken_one) {
  write_fake_run(folder / "run", {.steps = 50, .finished = 20, .save_every = 5});
  add_line(R"({"step":21,"steps":50,"lo)");
  std::ofstream(folder / "run" / "checkpoints.jsonl", std::ios::app) << R"({"kind":"save","st)";
  LivePage live({folder / "run"}, 1);
  EXPECT_THAT(live.current()->main, AllOf(HasSubstr("is at step 20 of 50"), Not(HasSubstr("could not be read"))));
  add_line("ss\":3.5}\n");
  EXPECT_THAT(live.current()->main, AllOf(HasSubstr("is at step 21 of 50"), Not(HasSubstr("could not be read"))));
  add_line("{\"step\n");
  EXPECT_THAT(live.current()->main, HasSubstr("1 of 22 lines of metrics.jsonl could not be read"));
}

TEST_F(LivePageTest, runs_come_and_go) {
  const auto evil = folder / "<b>later";
  LivePage live({folder / "run", evil}, 1);
  EXPECT_THAT(live.current()->main, AllOf(HasSubstr("run does not exist yet"), HasSubstr("&lt;b&gt;later does not exist yet")));
  fs::create_directories(folder / "run");
  EXPECT_THAT(live.current()->main, AllOf(HasSubstr("no step has been recorded"), HasSubstr("&lt;b&gt;later does not exist yet")));
  write_fake_run(folder / "run", {.steps = 50, .finished = 20});
  write_fake_run(evil, {.steps = 50, .finished = 30});
  EXPECT_THAT(live.current()->main, AllOf(HasSubstr("is at step 20 of 50"), HasSubstr("is at step 30 of 50"), Not(HasSubstr("exist"))));
  fs::remove_all(folder / "run");
  std::ofstream(folder / "run") << "a file";
  EXPECT_THAT(live.current()->main, AllOf(HasSubstr("run does not exist yet"), HasSubstr("is at step 30 of 50")));
  fs::remove_all(evil);
  fs::create_directories(evil / "metrics.jsonl");
  EXPECT_THAT(live.current()->main, HasSubstr("metrics.jsonl")) << "a folder in the place of a file is named";
}

TEST_F(LivePageTest, follows_a_sweep) {
  fs::create_directories(folder / "runs");
  SweepResults sweep;
  sweep.definition = "d", sweep.metric = "loss", sweep.settings = {"optimizer.lr"}, sweep.rungs = {10};
  sweep.trials = {{"000", {"0.1"}}, {"001", {"0.2"}}};
  std::ofstream(folder / "sweep.jsonl") << first_line(sweep) << '\n';
  LivePage live({folder}, 1);
  EXPECT_THAT(live.current()->main, HasSubstr("0 of 2 runs came to an end"));
  std::ofstream(folder / "sweep.jsonl", std::ios::app) << line_of({.trial = "001", .step = 10, .metric = 3.5}) << '\n';
  EXPECT_THAT(live.current()->main, HasSubstr("1 of 2 runs came to an end"));
  std::ofstream(folder / "sweep.jsonl") << "no sweep\n";
  EXPECT_THAT(live.current()->main, HasSubstr("sweep.jsonl"));
}

}  // namespace
}  // namespace ingot::report
