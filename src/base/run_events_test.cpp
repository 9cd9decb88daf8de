#include "base/run_events.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace ingot::base {
namespace {

namespace fs = std::filesystem;

struct EventFiles : ::testing::Test {
  const fs::path folder = fs::temp_directory_path() / ("events_" + std::to_string(getpid()));
  EventFiles() { fs::create_directories(folder); }
  ~EventFiles() override { fs::remove_all(folder); }
};

TEST_F(EventFiles, are_read_as_they_were_written) {
  EXPECT_TRUE(read_run_events(folder).events.empty());
  record_event(folder, "failure", {{"rank", 2}, {"what", "bad \xff byte\n"}});
  record_event(folder, "restart", {{"attempt", 1}});
  const auto read = read_run_events(folder);
  ASSERT_EQ(read.events.size(), 2u);
  EXPECT_EQ(read.events[0]["event"], "failure");
  EXPECT_EQ(read.events[0]["rank"], 2);
  EXPECT_EQ(read.events[1]["event"], "restart");
  EXPECT_LE(read.events[0]["time_s"].get<double>(), read.events[1]["time_s"].get<double>());
}

TEST_F(EventFiles, broken_lines_are_counted) {
  std::ofstream(folder / "events.jsonl") << "{\"time_s\": 1, \"event\": \"start\"}\n\n{\"time_s\": 1}\nnonsense\n[1]\n{\"time_s\": \"x\", "
                                            "\"event\": \"a\"}\n{\"time_s\": 2, \"ev";
  const auto read = read_run_events(folder);
  EXPECT_EQ(read.events.size(), 1u);
  EXPECT_EQ(read.broken_lines, 5);
}

TEST_F(EventFiles, where_nothing_can_be_written_a_run_goes_on) {
  record_event(folder / "missing", "start", nlohmann::ordered_json::object());
}

}  // namespace
}  // namespace ingot::base
