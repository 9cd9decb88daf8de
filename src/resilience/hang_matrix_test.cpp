// Four ranks over three groups, of which one does something wrong in its fourth step: the launcher must name it, in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/environment.h"
#include "base/files.h"
#include "base/process.h"
#include "base/run_events.h"
#include "base/stack_dump.h"
#include "comm/rank_environment.h"
#include "comm/world.h"
#include "resilience/launch.h"

namespace ingot::resilience {
namespace {

namespace fs = std::filesystem;

constexpr double kLimit_s = 0.8;  // a rank may be without a core for a while beside other tests
constexpr int64_t kWrongStep = 4;

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// -- the ranks -------------------------------------------------------------------------------------------------------------------

// What a rank does when its turn comes; it does not return.
void hang(const std::string& how) {
  if (how == "stops") raise(SIGSTOP);
  if (how == "spins")
    for (volatile int64_t i = 0;; i = i + 1) {
    }
  if (how == "deadlocks") {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex), pthread_mutex_lock(&mutex);
  }
  if (how == "reads_what_never_comes") {
    int ends[2];
    char byte = 0;
    if (pipe(ends) == 0 && read(ends[0], &byte, 1) >= 0) return;
  }
  if (how == "waits_for_the_kernel" && vfork() == 0) {  // a parent waits in the kernel, as for storage
    sleep(60);
    _exit(0);
  }
  if (how == "dies") raise(SIGKILL);
  if (how == "exits") _exit(3);
  if (how == "leaves") _exit(0);
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

class Rank {
 public:
  Rank(std::string wrong, int victim, const std::string& folder)
      : world_(comm::World::join(comm::rank_environment(base::environment()), false, {.timeout = std::chrono::seconds(30)})),
        rank_(world_->rank()),
        wrong_(rank_ == victim ? std::move(wrong) : ""),
        folder_(folder),
        data_(world_->group("data", rank_ < 2 ? std::vector{0, 1} : std::vector{2, 3})),
        tensor_(world_->group("tensor", rank_ % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3})) {
    world_->ledger().heartbeat().set_run_directory(folder);
  }

  void run() {
    for (int64_t step = 1; step < 1'000'000; ++step) {
      world_->ledger().set_step(step);
      is_wrong_ = step == kWrongStep && !wrong_.empty();
      if (is_wrong_) std::ofstream(fs::path(folder_) / "since") << fmt::format("{:.3f}", now_s());
      if (does("orders_otherwise")) everyone();
      if (!does("skips_data")) data();
      if (does("repeats_data")) data();
      message();
      if (!does("skips_tensor")) tensor();
      if (is_wrong_ && !does_in_operations()) hang(wrong_);
      if (!does("skips_everyone") && !does("orders_otherwise")) everyone();
      if (does("repeats_everyone")) everyone();
      root();
    }
  }

 private:
  bool does(const char* what) const { return is_wrong_ && wrong_ == what; }
  bool does_in_operations() const {
    for (const char* begin : {"skips_", "repeats_", "orders_", "takes_", "sends_"})
      if (wrong_.starts_with(begin)) return true;
    return false;
  }
  void data() { data_->all_reduce(at::ones({64})); }
  void tensor() { tensor_->all_gather(at::empty({64}), at::ones({32})); }
  void message() {
    const auto bytes = at::ones({does("sends_too_little") ? 8 : 16});
    if (data_->rank() == 1) data_->receive(bytes, 0);
    else if (!does("sends_nothing")) data_->send(bytes, 1);
  }
  void everyone() {
    auto& all = world_->everyone();
    if (does("takes_another_kind")) return all.all_gather(at::empty({256}), at::ones({64}));
    const auto dtype = does("takes_another_dtype") ? at::kDouble : at::kFloat;
    all.all_reduce(at::ones({does("takes_another_size") ? 65 : 64}, dtype),
                   does("takes_another_reduction") ? comm::Reduction::max : comm::Reduction::sum);
  }
  void root() { world_->everyone().broadcast(at::ones({4}), does("takes_another_root") ? 1 : 0); }

  std::unique_ptr<comm::World> world_;
  int rank_;
  std::string wrong_, folder_;
  std::unique_ptr<comm::Group> data_, tensor_;
  bool is_wrong_ = false;
};

// What the cases start: its last words are what goes wrong, in which rank, and where it says since when.
TEST(HangMatrixHelper, DISABLED_a_rank) {
  std::vector<std::string> words;
  std::ifstream line("/proc/self/cmdline");
  for (std::string word; std::getline(line, word, '\0');) words.push_back(word);
  const auto n = words.size();
  base::dump_stack_on_signal();
  try {
    Rank(words.at(n - 3), std::stoi(words.at(n - 2)), words.at(n - 1)).run();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    _exit(1);
  }
}

// -- the cases -------------------------------------------------------------------------------------------------------------------

struct Case {
  const char* wrong;
  int victim;
  friend std::ostream& operator<<(std::ostream& out, const Case& c) { return out << "rank " << c.victim << ' ' << c.wrong; }
};

class HangMatrix : public ::testing::TestWithParam<Case> {
 protected:
  HangMatrix() { fs::create_directories(folder_); }
  ~HangMatrix() override { fs::remove_all(folder_); }
  const fs::path folder_ = fs::temp_directory_path() / fmt::format("ingot_hang_matrix_{}", getpid());
};

// That the rank itself is meant, alone or as one of two that wait for each other.
std::string named(int rank) {
  return fmt::format("rank {0} \\(process [0-9]+\\) (hangs|was ended|exited|has left|has died|is in |sent |in |waits in )|rank {0} began",
                     rank);
}

TEST_P(HangMatrix, names_the_rank_in_time) {
  const auto [wrong, victim] = GetParam();
  launch({.ranks = 4,
          .hang_s = kLimit_s,
          .grace_s = 0.5,
          .command = {base::own_program(), "--gtest_also_run_disabled_tests", "--gtest_filter=HangMatrixHelper.*", wrong,
                      std::to_string(victim), folder_.string()}});
  const auto events = base::read_run_events(folder_).events;
  ASSERT_EQ(events.size(), 2u) << "the failure, and that the job is not started again";
  const auto& event = events[0];
  auto said = event.at("what").get<std::string>();
  for (const auto& text : event.at("last_lines")) said += "\n" + text.get<std::string>();
  EXPECT_THAT(said, ::testing::ContainsRegex(named(victim))) << event.dump(2);
  for (int other = 0; other < 4; ++other)
    if (other != victim) EXPECT_THAT(said, Not(::testing::ContainsRegex(fmt::format("rank {}[^,;]* hangs", other)))) << event.dump(2);
  const double since = std::stod(base::read_file(folder_ / "since")), took = event.at("time_s").get<double>() - since;
  EXPECT_LT(took, kLimit_s + 1);
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* wrong : {"stops", "sleeps", "spins", "deadlocks", "reads_what_never_comes", "waits_for_the_kernel"})
    for (int victim = 0; victim < 4; ++victim) all.push_back({wrong, victim});
  int victim = 0;
  for (const char* wrong :
       {"dies", "exits", "leaves", "skips_data", "skips_tensor", "skips_everyone", "repeats_data", "repeats_everyone", "orders_otherwise",
        "takes_another_kind", "takes_another_size", "takes_another_dtype", "takes_another_reduction", "takes_another_root"})
    for (int i = 0; i < 2; ++i) all.push_back({wrong, victim++ % 4});
  for (const char* wrong : {"sends_nothing", "sends_too_little"})  // the second of a pair sends nothing
    for (const int sender : {0, 2}) all.push_back({wrong, sender});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ranks, HangMatrix, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return fmt::format("{}_{}", instance.param.wrong, instance.param.victim); });

}  // namespace
}  // namespace ingot::resilience
