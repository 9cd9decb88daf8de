// Two processes on one run directory.
#include "train/run_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "base/error.h"

namespace ingot::train {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct RunLocks : ::testing::Test {
  const fs::path folder = fs::temp_directory_path() / ("run_lock_" + std::to_string(getpid())), run = folder / "runs" / "a";
  ~RunLocks() override { fs::remove_all(folder); }

  // A process that holds the folder for some time, or until it is killed.
  pid_t holder(std::chrono::milliseconds time) const {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    if (child == 0) {
      const RunLock lock({run}, "1.2.3", 0s);
      EXPECT_EQ(write(ready[1], "x", 1), 1);
      std::this_thread::sleep_for(time);
      _exit(0);
    }
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]), close(ready[1]);
    return child;
  }
  std::string refusal(std::chrono::duration<double> patience) const {
    try {
      const RunLock lock({run}, "", patience);
    } catch (const base::ConfigError& refused) {
      return refused.what();
    }
    return "";
  }
};

TEST_F(RunLocks, the_second_job_is_told_who_has_the_folder) {
  const pid_t child = holder(10s);
  EXPECT_THAT(refusal(100ms), AllOf(HasSubstr(run.string() + " is in use by process " + std::to_string(child) + " on "),
                                    HasSubstr("ingot 1.2.3, since 20"), HasSubstr("--run-dir")));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(refusal(0s), "") << "a killed holder leaves nothing behind";
}

TEST_F(RunLocks, a_holder_that_ends_is_waited_for) {
  const pid_t child = holder(300ms);
  EXPECT_EQ(refusal(10s), "");
  waitpid(child, nullptr, 0);
}

TEST_F(RunLocks, all_folders_are_held_and_the_missing_ones_are_made) {
  const RunLock lock({folder / "x" / "y", run}, "", 0s);
  EXPECT_THAT(refusal(0s), HasSubstr("is in use by process " + std::to_string(getpid())));
}

TEST_F(RunLocks, what_a_killed_process_was_writing_goes) {
  fs::create_directories(run / "folder.tmp7");
  for (const char* name : {"ledger-rank-1.json.tmp4711", "metrics.jsonl", "notes.tmp", "notes.tmp.md", "notes.tmp7b", ".tmp7"})
    std::ofstream(run / name) << "x";
  const RunLock lock({run}, "", 0s);
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(run)) left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{".lock", ".tmp7", "folder.tmp7", "metrics.jsonl", "notes.tmp", "notes.tmp.md", "notes.tmp7b"}));
}

TEST_F(RunLocks, folders_that_stayed_empty_go_and_others_stay) {
  { const RunLock lock({run, folder / "b"}, "", 0s); }
  EXPECT_FALSE(fs::exists(folder));
  {
    const RunLock lock({run}, "", 0s);
    std::ofstream(run / "metrics.jsonl") << "x";
  }
  EXPECT_TRUE(fs::exists(run / ".lock"));
  fs::remove(run / "metrics.jsonl");
  { const RunLock lock({run}, "", 0s); }
  EXPECT_TRUE(fs::exists(run)) << "it was there before";
}

TEST_F(RunLocks, where_there_can_be_no_lock_training_goes_on) {
  fs::create_directories(run / ".lock");  // a folder cannot be locked by this
  EXPECT_EQ(refusal(0s), "");
}

}  // namespace
}  // namespace ingot::train
