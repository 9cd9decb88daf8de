// A save that is killed or fails at each of its system calls in turn.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "base/error.h"
#include "checkpoint/load/verify.h"
#include "checkpoint/tests/test_faults.h"
#include "checkpoint/tests/test_support.h"

namespace ingot::checkpoint {
namespace {

using ::testing::HasSubstr;

class Crash : public TemporaryFolder {
 protected:
  const Sample old_ = Sample::usual(1), new_ = Sample::usual(2), later_ = Sample::usual(3);

  const fs::path template_ = folder.string() + "_template";

  Crash() : TemporaryFolder(memory_folder()) {}
  // Three old checkpoints and a leftover, so that a save also collects, and removes the oldest afterwards.
  void SetUp() override {
    TemporaryFolder::SetUp();
    fs::remove_all(template_);
    for (const int64_t step : {10, 20, 30}) save(template_, step, old_.items(), {{"x", "old"}});
    fs::create_directories(template_ / ".step_00000005.tmp-00");
    put_content(template_ / ".step_00000005.tmp-00" / "data_00000.bin", "half");
  }
  void TearDown() override {
    fs::remove_all(template_);
    TemporaryFolder::TearDown();
  }
  void prepare() {
    fs::remove_all(folder);
    fs::copy(template_, folder, fs::copy_options::recursive);
  }
  SaveReport save_new(int64_t step, CallHook* hook) {
    const PosixStorage storage(hook, 8192);  // so that there are many writes
    return save(folder, step, new_.items(), {{"x", "new"}}, {.piece_limit_bytes = 40000, .grace_s = 0, .storage = &storage});
  }
  std::vector<std::string> names() const { return names_in(folder); }
  // Whether what `latest` finds is one of the two, complete and sound.
  void expect_old_or_new(bool& is_new) {
    const auto newest = latest(folder);
    ASSERT_TRUE(newest);
    is_new = Reader(newest->path).extra("x") == "new";
    EXPECT_TRUE((is_new ? new_ : old_).is_in(newest->path));
    for (const auto& one : all(folder)) EXPECT_TRUE(verify(one.path).sound()) << one.path;
  }

  // Kills a save of `step` at every call; returns how often the new checkpoint was there afterwards.
  void kill_everywhere(int64_t step, bool can_exchange, int& calls, int& survived) {
    for (calls = 0, survived = 0;; ++calls) {
      SCOPED_TRACE(calls);
      prepare();
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        Kill kill(calls);
        NoExchange no_exchange(kill);
        save_new(step, can_exchange ? static_cast<CallHook*>(&kill) : &no_exchange);
        ::_exit(0);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      const bool finished = WIFEXITED(status);
      ASSERT_TRUE(finished ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL);

      bool is_new = false;
      expect_old_or_new(is_new);
      survived += is_new;
      ASSERT_TRUE(is_new || !finished);
      // The next save succeeds and leaves exactly what it should.
      save(folder, 50, later_.items(), {{"x", "later"}}, {.retention = {.keep = 1}, .grace_s = 0});
      EXPECT_TRUE(later_.is_in(folder / "step_00000050"));
      EXPECT_THAT(names(), ::testing::ElementsAre("step_00000050"));
      if (finished || HasFatalFailure()) return;
    }
  }
};

TEST_F(Crash, killed_at_any_call_leaves_the_old_or_the_new_checkpoint) {
  int calls = 0, survived = 0;
  kill_everywhere(40, true, calls, survived);
  EXPECT_GT(calls, 40);
  EXPECT_GT(survived, 5) << "no kill came after the commit";
  EXPECT_LT(survived, calls);
}

TEST_F(Crash, killed_while_replacing_a_step_leaves_the_old_or_the_new_one) {
  int calls = 0, survived = 0;
  kill_everywhere(30, true, calls, survived);
  EXPECT_GT(survived, 5);
}

TEST_F(Crash, killed_while_replacing_without_exchange_falls_back_and_gets_the_old_one_back) {
  int calls = 0, survived = 0;
  kill_everywhere(30, false, calls, survived);
  EXPECT_GT(survived, 2);
  // Between the two renames neither is visible; the next save gives the old one its name back.
  prepare();
  fs::rename(folder / "step_00000030", folder / ".step_00000030.old");
  save_new(40, nullptr);
  EXPECT_TRUE(old_.is_in(folder / "step_00000030"));
}

class Faults : public Crash, public ::testing::WithParamInterface<int> {};

// Before the commit any refused call fails the save and leaves all as it was; after it, removing old ones may fail quietly.
TEST_P(Faults, at_any_call_is_an_error_without_commit_or_harmless) {
  for (const int64_t step : {40, 30}) {
    bool past_the_end = false;
    int failed = 0, harmless = 0;
    for (int at = 0; !past_the_end; ++at) {
      SCOPED_TRACE(fmt::format("step {} call {}", step, at));
      prepare();
      Fail hook(at, GetParam());
      try {
        save_new(step, &hook);
        ++harmless;
        EXPECT_TRUE(new_.is_in(folder / step_name(step)));
        past_the_end = at >= hook.count();
      } catch (const base::CheckpointError& error) {
        ++failed;
        EXPECT_THAT(error.what(), HasSubstr(std::strerror(GetParam())));
        EXPECT_THAT(error.what(), HasSubstr(folder.string()));
        for (const int64_t kept : {10, 20, 30}) EXPECT_TRUE(old_.is_in(folder / step_name(kept))) << kept;
        EXPECT_EQ(fs::exists(folder / "step_00000040"), false);
      }
      ASSERT_FALSE(HasFatalFailure());
      // Nothing of the failed save remains, and the next one works.
      const auto left = names();
      EXPECT_TRUE(std::none_of(left.begin(), left.end(), [](const std::string& name) { return name.starts_with(".step_00000040"); }));
      save(folder, 60, later_.items(), {}, {.retention = {.keep = 1}, .grace_s = 0});
      EXPECT_THAT(names(), ::testing::ElementsAre("step_00000060"));
    }
    EXPECT_GT(failed, 15);
    EXPECT_GT(harmless, 5);
  }
}

std::string error_name(const ::testing::TestParamInfo<int>& info) { return ::strerrorname_np(info.param); }
INSTANTIATE_TEST_SUITE_P(Errors, Faults, ::testing::Values(ENOSPC, EIO, EDQUOT, EROFS, EACCES), error_name);

TEST_F(Crash, interrupted_calls_and_short_writes_are_carried_on) {
  for (const bool interrupted : {true, false}) {
    for (int at = 0;; ++at) {
      SCOPED_TRACE(at);
      prepare();
      Fail interrupt(at, EINTR);
      Shorten shorten(at);
      ActAt& hook = interrupted ? static_cast<ActAt&>(interrupt) : shorten;
      const auto report = save_new(40, &hook);
      ASSERT_TRUE(new_.is_in(report.path));
      ASSERT_TRUE(verify(report.path).sound());
      EXPECT_THAT(names(), ::testing::ElementsAre("step_00000020", "step_00000030", "step_00000040"));
      if (at >= hook.count()) break;
    }
  }
}

// On the file system of /tmp, which as a rule takes direct writes: a short one leaves the rest unaligned.
TEST_F(Crash, short_writes_past_the_page_cache_are_carried_on) {
  const fs::path place = fs::temp_directory_path() / folder.filename();
  for (int at = 0;; at += 3) {
    Shorten hook(at);
    const PosixStorage storage(&hook, 8192);
    const auto report = save(place, 1, new_.items(), {{"x", std::string(10000, 'y')}}, {.storage = &storage});
    EXPECT_TRUE(new_.is_in(report.path));
    EXPECT_TRUE(verify(report.path).sound());
    if (at >= hook.count()) break;
  }
  fs::remove_all(place);
}

TEST_F(Crash, full_disk_is_reported_with_file_reason_and_next_step) {
  save(folder, 10, old_.items(), {});
  // A real limit of the operating system rather than the hook: no file of this process may grow beyond it.
  rlimit before{}, small{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  small = before;
  small.rlim_cur = 20000;
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    save(folder, 20, new_.items(), {});
  } catch (const base::CheckpointError& error) {
    message = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, previous);
  EXPECT_THAT(message, HasSubstr("data_00000.bin: File too large"));
  EXPECT_THAT(names(), ::testing::ElementsAre("step_00000010"));
  Fail hook(14, ENOSPC);
  try {
    save_new(20, &hook);
    FAIL();
  } catch (const base::CheckpointError& error) {
    EXPECT_THAT(error.what(), HasSubstr("free space"));
  }
}

// The order that makes the commit safe: every file and the folder durable before the rename, the parent after it.
TEST_F(Crash, everything_is_durable_before_it_becomes_visible) {
  struct Log : CallHook {
    std::vector<std::pair<Call, fs::path>> calls;
    int before(Call call, const fs::path& path, size_t&) override {
      calls.emplace_back(call, path);
      return 0;
    }
  } log;
  const PosixStorage storage(&log);
  const auto report = save(folder / "new", 7, new_.items(), {}, {.storage = &storage});
  std::vector<std::string> order;
  for (const auto& [call, path] : log.calls) {
    const std::string name = path.filename().string().starts_with(".step") ? "hidden" : path.filename().string();
    if (call == Call::sync) order.push_back("sync " + name);
    if (call == Call::rename) order.push_back("rename " + name);
  }
  const std::string parent = folder.filename();
  EXPECT_THAT(order, ::testing::ElementsAre("sync " + parent, "sync new", "sync data_00000.bin", "sync metadata.bin", "sync hidden",
                                            "rename hidden", "sync new"));
}

}  // namespace
}  // namespace ingot::checkpoint
