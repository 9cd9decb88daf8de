// How a run is doing, from what lies in its directory.
#include "report/status/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "base/files.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct RunStatuses : ::testing::Test {
  const fs::path folder = fs::temp_directory_path() / ("status_" + std::to_string(getpid()));
  RunStatuses() { fs::create_directories(folder); }
  ~RunStatuses() override { fs::remove_all(folder); }

  void steps(int last, double step_s = 1) const {
    std::ofstream file(folder / "metrics.jsonl");
    for (int step = 1; step <= last; ++step)
      file
          << fmt::format(
                 R"({{"step": {}, "steps": 100, "tokens": {}, "loss": 3.5, "step_ms": {}, "tokens_per_s": 1000, "predicted_step_ms": 900, "time_s": {}}})",
                 step, step * 1000, 1000 * step_s, 1000 + step_s * step)
          << "\n";
  }
  void events(const std::string& lines) const { std::ofstream(folder / "events.jsonl") << lines; }
};

TEST_F(RunStatuses, a_run_that_is_held_goes_on) {
  steps(40);
  events("{\"time_s\": 1000, \"event\": \"start\", \"step\": 0, \"steps\": 100, \"ranks\": 2}\n");
  auto lock = base::FileLock::try_take(folder / ".lock");
  std::ofstream(folder / ".lock") << "process 7 on here, ingot 1\n";
  auto status = status_of(folder, 1045);
  EXPECT_EQ(status.state, RunState::running);
  EXPECT_EQ(status.silent_s, 5);
  EXPECT_THAT(status.text(),
              AllOf(HasSubstr("running: process 7 on here, ingot 1\n"), HasSubstr("[########............] step 40 of 100 (40.0 %)"),
                    HasSubstr("1 min 00 s left"), HasSubstr("(predicted 900.0 ms,"), Not(HasSubstr("trouble"))));
  lock.reset();
  status = status_of(folder, 1045);
  EXPECT_EQ(status.state, RunState::gone);
  EXPECT_THAT(status.text(), AllOf(HasSubstr("without a word"), Not(HasSubstr(" left"))));
}

TEST_F(RunStatuses, sources_have_their_losses) {
  std::ofstream(folder / "metrics.jsonl")
      << R"({"step":1,"steps":2,"loss":3,"time_s":1,"source_loss":{"data/x/web":{"loss":2.5,"tokens":8},"data/y":{"loss":4,"tokens":8}}})"
      << "\n";
  EXPECT_THAT(status_of(folder, 2).text(), HasSubstr("sources   x/web 2.500, y 4.000\n"));
  EXPECT_EQ(status_of(folder, 2).json()["numbers"]["source_loss"]["x/web"], 2.5);
}

TEST_F(RunStatuses, ends_and_failures_are_told_apart) {
  steps(100);
  events("{\"time_s\": 1100, \"event\": \"end\", \"step\": 100, \"why\": \"all steps\"}\n");
  EXPECT_EQ(status_of(folder, 2000).state, RunState::ended);
  EXPECT_THAT(status_of(folder, 2000).text(), HasSubstr("ended: after step 100: all steps"));
  events(
      "{\"time_s\": 1100, \"event\": \"failure\", \"step\": 100, \"what\": \"rank 1 broke\"}\n{\"time_s\": 1101, \"event\": \"gave_up\", "
      "\"why\": \"given up\"}\n");
  EXPECT_EQ(status_of(folder, 2000).state, RunState::failed);
  EXPECT_THAT(status_of(folder, 2000).text(), HasSubstr("failed: rank 1 broke"));
  EXPECT_EQ(status_of(folder, 2000).lost_s, 0);
}

TEST_F(RunStatuses, lost_time_reaches_until_the_run_stands_where_it_stood) {
  steps(40);  // step 20 was done again at 1020
  events(
      "{\"time_s\": 1010, \"event\": \"failure\", \"step\": 20, \"what\": \"a\"}\n{\"time_s\": 1011, \"event\": \"restart\", \"attempt\": "
      "1, \"why\": \"at once\"}\n"
      "{\"time_s\": 1015, \"event\": \"hang\", \"step\": 18, \"what\": \"b\"}\n{\"time_s\": 1016, \"event\": \"restart\", \"attempt\": 2, "
      "\"why\": \"at once\"}\n");
  const auto status = status_of(folder, 1040);
  EXPECT_EQ(status.lost_s, 10) << "from 1010 to 1020; what the hang lost lies within";
  EXPECT_EQ(status.failures, 1);
  EXPECT_EQ(status.hangs, 1);
  EXPECT_EQ(status.restarts, 2);
  EXPECT_THAT(status.text(), HasSubstr("1 failure, 1 hang, 2 restarts; 10.0 s lost"));
  EXPECT_EQ(status.json()["restarts"], 2);
}

TEST_F(RunStatuses, a_folder_of_something_else_is_refused_and_broken_files_are_not) {
  EXPECT_THROW(status_of(folder, 0), base::DataError);
  EXPECT_THROW(status_of(folder / "none", 0), base::DataError);
  std::ofstream(folder / "metrics.jsonl") << "nonsense\n{\"step\": 1}\n{\"st";
  events("nonsense\n{\"time_s\": 1e300, \"event\": \"failure\"}\n");
  EXPECT_THAT(status_of(folder, 5).text(), HasSubstr("state"));
}

TEST_F(RunStatuses, an_event_is_a_line_with_last_words_below) {
  const auto event = nlohmann::ordered_json::parse(R"({"time_s": 0, "event": "hang", "what": "rank 1 hangs", "last_lines": ["a", "b"]})");
  EXPECT_THAT(event_text(event), HasSubstr("  hang     rank 1 hangs\n    a\n    b"));
  EXPECT_THAT(event_text({{"time_s", 0}, {"event", "new"}, {"x", 1}}), HasSubstr("{\"x\":1}"));
}

}  // namespace
}  // namespace ingot::report
