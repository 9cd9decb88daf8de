// Saves by several ranks of which one cannot write, is slow or silent: all end together, nothing is half there, and the same Savers save
// again.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <latch>
#include <set>

#include "base/error.h"
#include "checkpoint/load/verify.h"
#include "checkpoint/tests/test_faults.h"
#include "checkpoint/tests/test_team.h"

namespace ingot::checkpoint {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kRanks = 3;

// How a rank's two saves ended: the first of step 40, then, by the same Saver, one of step 50.
struct Ends {
  std::string first, second;
};

class TeamFaults : public TemporaryFolder {
 protected:
  TeamFaults() : TemporaryFolder(memory_folder()) {}
  const Sample old_ = mixed_sample(1), new_ = mixed_sample(2), later_ = mixed_sample(3);
  const fs::path template_ = folder.string() + "_template";

  void SetUp() override {
    TemporaryFolder::SetUp();
    fs::remove_all(template_);
    for (const int64_t step : {20, 30}) save(template_, step, old_.items(), {});
  }
  void TearDown() override {
    fs::remove_all(template_);
    TemporaryFolder::TearDown();
  }
  void prepare() const {
    fs::remove_all(folder);
    fs::copy(template_, folder, fs::copy_options::recursive);
  }

  SaveOptions options(const Team& team, const Storage& storage) const {
    return {.retention = {.keep = 2},
            .piece_limit_bytes = 1500,
            .file_limit_bytes = 6000,
            .grace_s = 0,
            .block_bytes = 4096,
            .storage = &storage,
            .team = &team};
  }
  static std::string save_once(Saver& saver, int64_t step, const Sample& sample, const Team& team) {
    try {
      saver.start(step, mixed_items(sample, team.rank(), team.size()), {{fmt::format("of rank {}", team.rank()), "note"}});
    } catch (const base::Error& error) {
      return error.what();
    }
    saver.wait_copied();
    saver.wait();
    const auto outcomes = saver.finished();
    return outcomes.size() == 1 ? outcomes[0].failure : "no outcome";
  }

  /// Rank `victim` makes its system calls through the hook; `calls` becomes their number in the first save.
  std::vector<Ends> save_twice(int victim, ActAt& hook, int& calls) const {
    std::vector<Ends> ends(kRanks);
    const auto errors = run_team(kRanks, [&](const Team& team) {
      const PosixStorage storage(team.rank() == victim ? &hook : nullptr, 4096);
      Saver saver(folder, options(team, storage));
      auto& own = ends[static_cast<size_t>(team.rank())];
      own.first = save_once(saver, 40, new_, team);
      if (team.rank() == victim) calls = hook.count(), hook.stop();
      own.second = save_once(saver, 50, later_, team);
    });
    EXPECT_THAT(errors, Each(""));
    return ends;
  }
  void expect_next_save_is_whole(const std::vector<Ends>& ends, bool first_is_there) const {
    for (const auto& end : ends) EXPECT_EQ(end.second, "");
    EXPECT_TRUE(later_.is_in(folder / step_name(50)));
    EXPECT_TRUE(verify(folder / step_name(50)).sound());
    EXPECT_THAT(names_in(folder), ElementsAre(step_name(first_is_there ? 40 : 30), step_name(50)));
    EXPECT_TRUE((first_is_there ? new_ : old_).is_in(folder / step_name(first_is_there ? 40 : 30)));
  }
};

TEST_F(TeamFaults, a_refused_call_of_any_rank_fails_all_without_commit_or_is_harmless) {
  std::set<std::pair<Call, std::string>> refused;
  for (const int error : {EIO, ENOSPC}) {
    for (int victim = 0; victim < kRanks; ++victim) {
      int failed = 0;
      for (int at = 0, calls = 1; calls > at - 1; ++at) {
        SCOPED_TRACE(fmt::format("{} of rank {} at call {}", std::strerror(error), victim, at));
        prepare();
        Fail hook(at, error);
        const auto ends = save_twice(victim, hook, calls);
        const bool fails = !ends[0].first.empty();
        failed += fails;
        for (const auto& end : ends) {
          EXPECT_EQ(end.first, ends[0].first) << "all hear the same";
          if (!fails) continue;
          EXPECT_THAT(end.first, HasSubstr(std::strerror(error)));
          EXPECT_THAT(end.first, HasSubstr(folder.string()));
          EXPECT_TRUE(victim == 0 || end.first.find(fmt::format("rank {}: ", victim)) != std::string::npos) << end.first;
        }
        if (fails) refused.emplace(hook.failed, hook.failed_path.filename());
        expect_next_save_is_whole(ends, !fails);
        if (HasFailure()) return;
      }
      EXPECT_GT(failed, 8) << "rank " << victim;
    }
  }
  EXPECT_THAT(refused, Contains(std::pair(Call::write, std::string(kMetadataName))));
  EXPECT_THAT(refused, Contains(std::pair(Call::sync, std::string(kMetadataName))));
  EXPECT_THAT(refused, Contains(::testing::Pair(Call::rename, HasSubstr("step_00000040"))));
}

TEST_F(TeamFaults, interrupted_calls_and_short_writes_of_any_rank_are_carried_on) {
  for (const bool interrupted : {true, false})
    for (int victim = 0; victim < kRanks; ++victim)
      for (int at = 0, calls = 1; at < calls; ++at) {
        SCOPED_TRACE(fmt::format("rank {} at call {}", victim, at));
        prepare();
        Fail interrupt(at, EINTR);
        Shorten shorten(at);
        const auto ends = save_twice(victim, interrupted ? static_cast<ActAt&>(interrupt) : shorten, calls);
        for (const auto& end : ends) EXPECT_EQ(end.first, "");
        expect_next_save_is_whole(ends, true);
        if (HasFailure()) return;
      }
}

// A team in which rank 2 does not come to one of the calls: all of them end with an error, as after a time-out, and later ones work.
class Silence : public ThreadTeam {
 public:
  Silence(Desk& desk, int rank, int at) : ThreadTeam(desk, rank), at_(at) {}
  std::vector<std::string> gather(const std::string& own) const override { return count("gather"), ThreadTeam::gather(own); }
  std::string broadcast(const std::string& text) const override { return count("broadcast"), ThreadTeam::broadcast(text); }
  int calls() const { return calls_; }

 private:
  void count(const char* what) const {
    if (calls_++ == at_) throw base::CommError("rank 2 did not come to {} within 5 s (resilience.comm_timeout_s)", what);
  }
  int at_;
  mutable int calls_ = 0;
};

/// Like save_twice, with the `at`-th call of the team gone wrong.
std::vector<Ends> save_twice_with_silence(int at, const std::function<Ends(const Silence&)>& saves) {
  Desk desk(kRanks);
  std::vector<Ends> ends(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const Silence team(desk, rank, at);
      ends[static_cast<size_t>(rank)] = saves(team);
    });
  for (auto& thread : threads) thread.join();
  return ends;
}

TEST_F(TeamFaults, a_rank_that_never_reports_fails_all_and_the_same_savers_save_again) {
  constexpr int kReports = 6, kCalls = 8;  // all (two), what each holds, that it fits, shares; the id, reports, that it is committed
  for (int at = 0; at <= kCalls; ++at) {
    SCOPED_TRACE(fmt::format("call {} of the team", at));
    prepare();
    int calls = 0;
    const auto ends = save_twice_with_silence(at < kCalls ? at : -1, [&](const Silence& team) {
      Saver saver(folder, options(team, local_storage()));
      Ends own;
      own.first = save_once(saver, 40, new_, team);
      if (team.rank() == 0) {
        calls = team.calls();
        // While rank 0 gives up waiting for reports, others may still be writing: what they leave goes with the next save.
        if (at != kReports) {
          EXPECT_THAT(names_in(folder), Each(Not(StartsWith(".step_00000040")))) << "the hidden folder stays";
        }
      }
      own.second = save_once(saver, 50, later_, team);
      return own;
    });
    EXPECT_EQ(calls, std::min(at + 1, kCalls)) << "another number of calls than this test knows";
    const bool is_committed = at >= kCalls - 1;  // the last call only tells of it
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto& error = ends[static_cast<size_t>(rank)].first;
      const bool may_return = at == kCalls || (rank == 0 && is_committed);
      EXPECT_TRUE(may_return || error.find("rank 2 did not come to") != std::string::npos) << error;
      EXPECT_TRUE(at < kCalls || error.empty()) << error;
    }
    expect_next_save_is_whole(ends, is_committed);
    if (HasFailure()) return;
  }
}

// The others give up while one is still writing; what it writes afterwards disturbs nobody.
TEST_F(TeamFaults, a_rank_that_hangs_in_a_write_leaves_nothing_behind_when_it_goes_on) {
  struct Hang : CallHook {
    std::latch& gone_on;
    explicit Hang(std::latch& latch) : gone_on(latch) {}
    int before(Call call, const fs::path&, size_t&) override {
      if (call == Call::write) gone_on.wait();
      return 0;
    }
  };
  prepare();
  std::latch gone_on(2);
  Hang hang(gone_on);
  const auto ends = save_twice_with_silence(6, [&](const Team& team) {
    const PosixStorage storage(team.rank() == 2 ? &hang : nullptr, 4096);
    Saver saver(folder, options(team, storage));
    Ends own;
    own.first = save_once(saver, 40, new_, team);
    if (team.rank() != 2) gone_on.count_down();
    own.second = save_once(saver, 50, later_, team);
    return own;
  });
  for (const auto& end : ends) EXPECT_NE(end.first, "");
  expect_next_save_is_whole(ends, false);
}

// What rank 0 reports is what is on the disk, even when nobody hears of the commit any more.
TEST_F(TeamFaults, a_commit_that_could_not_be_told_is_a_commit_for_rank_0) {
  prepare();
  const auto ends = save_twice_with_silence(7, [&](const Team& team) {
    Saver saver(folder, options(team, local_storage()));
    return Ends{save_once(saver, 40, new_, team), ""};
  });
  ASSERT_TRUE(new_.is_in(folder / step_name(40)));
  EXPECT_EQ(ends[0].first, "") << "writer.h: \"on any failure nothing of the new checkpoint remains\"";
}

// A bug: an exception in the thread that copies ended the process (std::terminate), or left all waiting.
TEST_F(TeamFaults, memory_that_is_refused_or_a_copy_that_fails_is_a_failed_save) {
  const std::pair<const char*, std::function<void(SaveOptions&)>> faults[] = {
      {"staging", [](SaveOptions& o) { o.allocate = [](int64_t) -> std::shared_ptr<std::byte> { throw std::bad_alloc(); }; }},
      {"copy", [](SaveOptions& o) { o.copy = [](std::byte*, const std::byte*, int64_t) { throw std::runtime_error("device lost"); }; }}};
  for (const auto& [what, spoil] : faults) {
    SCOPED_TRACE(what);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(5);  // rather than wait for ever
      SaveOptions options;
      spoil(options);
      auto items = new_.items();
      for (auto& item : items) item.is_on_device = options.copy != nullptr;
      try {
        save(folder, 40, items, {}, options);
      } catch (const base::CheckpointError&) {
        ::_exit(0);
      }
      ::_exit(1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << strsignal(WTERMSIG(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "no CheckpointError";
  }
}

// A bug: names that no reader accepts were published, and the checkpoint could not be opened.
TEST_F(TeamFaults, extras_with_impossible_names_are_refused_before_the_commit) {
  for (const std::string& name : {std::string(), std::string("two\nlines"), std::string(5000, 'a')}) {
    EXPECT_THROW(save(folder, 40, new_.items(), {{name, "content"}}), base::CheckpointError) << name.substr(0, 20);
    EXPECT_FALSE(fs::exists(folder / step_name(40)));
    fs::remove_all(folder / step_name(40));
  }
}

}  // namespace
}  // namespace ingot::checkpoint
