// A save by several ranks, each a process, of which one is killed at each of its system calls in turn.
#include <gmock/gmock.h>

#include "checkpoint/load/verify.h"
#include "checkpoint/tests/test_faults.h"
#include "checkpoint/tests/test_processes.h"
#include "checkpoint/tests/test_team.h"

namespace ingot::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanks = 3;

class CrashOfRanks : public TemporaryFolder {
 protected:
  CrashOfRanks() : TemporaryFolder(memory_folder()) {}
  const Sample old_ = mixed_sample(1), new_ = mixed_sample(2), later_ = mixed_sample(3);
  const fs::path template_ = folder.string() + "_template";

  // Three checkpoints, of which a save removes the oldest two, and a leftover that it collects.
  void SetUp() override {
    TemporaryFolder::SetUp();
    fs::remove_all(template_);
    for (const int64_t step : {10, 20, 30})
      for (const auto& end : save_by_all(template_, step, old_, "old", 5)) ASSERT_EQ(end.error, "");
    fs::create_directories(template_ / ".step_00000005.tmp-00");
    put_content(template_ / ".step_00000005.tmp-00" / "data_00000.bin", "half");
  }
  void TearDown() override {
    fs::remove_all(template_);
    TemporaryFolder::TearDown();
  }

  /// One of the ranks makes its system calls through the hook.
  static std::vector<ProcessEnd> save_by_all(const fs::path& place, int64_t step, const Sample& sample, const std::string& mark,
                                             int64_t keep, int hooked = 0, CallHook* hook = nullptr) {
    return run_processes(kRanks, [&](const Team& team) {
      const PosixStorage storage(team.rank() == hooked ? hook : nullptr, 4096);
      Extras extras = {{fmt::format("of rank {}", team.rank()), "note"}};
      if (team.rank() == 0) extras["x"] = mark;
      save(place, step, mixed_items(sample, team.rank(), team.size()), extras,
           {.retention = {.keep = keep},
            .piece_limit_bytes = 1500,
            .file_limit_bytes = 6000,
            .grace_s = 0,
            .block_bytes = 4096,
            .storage = &storage,
            .team = &team});
    });
  }

  // What there is after a save of `step` during which rank `victim` was killed, or not.
  bool check(const std::vector<ProcessEnd>& ends, int64_t step, int victim) {
    for (const auto& one : all(folder)) EXPECT_TRUE(verify(one.path).sound()) << one.path;
    const auto newest = latest(folder);
    if (!newest) return ADD_FAILURE() << "no checkpoint is left", false;
    const bool is_new = Reader(newest->path).extra("x") == "new";
    EXPECT_TRUE((is_new ? new_ : old_).is_in(newest->path));
    EXPECT_EQ(newest->step, is_new ? step : 30);
    EXPECT_TRUE(step == 30 || old_.is_in(folder / step_name(30)));
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto& end = ends[static_cast<size_t>(rank)];
      if (rank == victim) continue;
      EXPECT_EQ(end.signal, 0) << "rank " << rank;
      if (is_new && end.error.empty()) continue;
      EXPECT_THAT(end.error, StartsWith("CheckpointError: "));
      EXPECT_THAT(end.error, HasSubstr("rank ")) << "rank " << rank << " is not told who is missing";
    }
    return is_new;
  }

  // Kills rank `victim` at each of its calls; returns their number, and how often the new checkpoint was there afterwards.
  std::pair<int, int> kill_everywhere(int64_t step, int victim) {
    int survived = 0;
    for (int call = 0;; ++call) {
      SCOPED_TRACE(fmt::format("step {}, rank {}, call {}", step, victim, call));
      fs::remove_all(folder);
      fs::copy(template_, folder, fs::copy_options::recursive);
      Kill kill(call);
      const auto start = std::chrono::steady_clock::now();
      const auto ends = save_by_all(folder, step, new_, "new", 2, victim, &kill);
      EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(ProcessTeam::kPatience_s)) << "somebody waited for the dead";
      const bool finished = ends[static_cast<size_t>(victim)].signal == 0;
      EXPECT_EQ(ends[static_cast<size_t>(victim)].signal, finished ? 0 : SIGKILL);
      const bool is_new = check(ends, step, victim);
      survived += is_new;
      if (finished) {
        EXPECT_TRUE(is_new);
        for (const auto& end : ends) EXPECT_EQ(end.error, "");
      }
      // A new team saves, and nothing lies about afterwards.
      for (const auto& end : save_by_all(folder, 50, later_, "later", 2)) EXPECT_EQ(end.error, "");
      EXPECT_TRUE(later_.is_in(folder / step_name(50)));
      EXPECT_THAT(names_in(folder), ElementsAre(step_name(is_new ? step : 30), step_name(50)));
      if (finished || HasFailure()) return {call, survived};
    }
  }
};

TEST_F(CrashOfRanks, first_rank_killed_at_any_call_leaves_the_old_or_the_new_checkpoint) {
  const auto [calls, survived] = kill_everywhere(40, 0);
  EXPECT_GT(calls, 60);
  EXPECT_GT(survived, 20) << "no kill came after the commit";
  EXPECT_GT(calls - survived, 20) << "no kill came before it";
}

TEST_F(CrashOfRanks, another_rank_killed_at_any_call_leaves_the_old_checkpoint) {
  for (const int victim : {1, 2}) {
    const auto [calls, survived] = kill_everywhere(40, victim);
    EXPECT_GT(calls, 8);
    EXPECT_EQ(survived, 1) << "rank 0 went on without what rank " << victim << " was to write";
  }
}

TEST_F(CrashOfRanks, any_rank_killed_while_a_step_is_replaced_leaves_the_old_or_the_new_one) {
  for (int victim = 0; victim < kRanks; ++victim) {
    const auto [calls, survived] = kill_everywhere(30, victim);
    EXPECT_GT(calls, 8);
    EXPECT_EQ(survived > 1, victim == 0);
  }
}

TEST_F(CrashOfRanks, several_killed_at_once_leave_the_old_checkpoint) {
  fs::copy(template_, folder, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  const auto ends = run_processes(kRanks, [&](const Team& team) {
    Kill kill(0);
    const PosixStorage storage(team.rank() > 0 ? &kill : nullptr, 4096);
    save(folder, 40, mixed_items(new_, team.rank(), team.size()), {},
         {.grace_s = 0, .block_bytes = 4096, .storage = &storage, .team = &team});
  });
  EXPECT_EQ(ends[1].signal, SIGKILL);
  EXPECT_EQ(ends[2].signal, SIGKILL);
  EXPECT_THAT(ends[0].error, StartsWith("CheckpointError: "));
  EXPECT_THAT(names_in(folder), ElementsAre(step_name(10), step_name(20), step_name(30)));
}

}  // namespace
}  // namespace ingot::checkpoint
