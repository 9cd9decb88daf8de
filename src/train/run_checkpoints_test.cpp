// Saves of a run whose storage hangs for longer than ranks wait for each other. Ranks are threads.
#include "train/run_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <barrier>
#include <mutex>
#include <semaphore>
#include <thread>

#include "checkpoint/load/verify.h"
#include "checkpoint/storage/folder.h"

namespace ingot::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int kRanks = 3;
constexpr std::chrono::seconds kPatience(2);

// Stops a rank at one of its system calls: at a call of one kind, below a folder with this in its name.
class Hang : public checkpoint::CallHook {
 public:
  Hang(checkpoint::Call call, std::string folder, std::function<void()> wait)
      : call_(call), folder_(std::move(folder)), wait_(std::move(wait)) {}
  int before(checkpoint::Call call, const fs::path& path, size_t&) override {
    if (call == call_ && path.string().find(folder_) != std::string::npos && !has_hung.exchange(true)) wait_();
    return 0;
  }
  std::atomic<bool> has_hung = false;

 private:
  checkpoint::Call call_;
  std::string folder_;
  std::function<void()> wait_;
};

class LostRanks : public ::testing::Test {
 protected:
  const fs::path run_dir_ = fs::temp_directory_path() / ("ingot-run-checkpoints-test-" + std::to_string(::getpid()));
  const fs::path folder_ = run_dir_ / "checkpoints";
  void SetUp() override { fs::remove_all(run_dir_); }
  void TearDown() override { fs::remove_all(run_dir_); }

  using Body = std::function<void(RunCheckpoints&, int rank)>;
  /// The body on all ranks; rank `victim` makes its system calls through the hook.
  void run(const Body& body, int victim = 0, checkpoint::CallHook* hook = nullptr) const {
    comm::WorldOptions options;
    options.timeout = kPatience;
    comm::run_ranks(
        kRanks,
        [&](comm::World& world) {
      mesh::Groups groups(world, {});
      TrainingSetup setup;
      auto& c = setup.model;
      c.family = "llama", c.layers = 1, c.hidden = 16, c.vocab_size = 32, c.heads = 2, c.kv_heads = 2, c.head_dim = 8, c.ffn = 24;
      setup.parallel.bucket_mib = 0.01;
      ParallelModel model(setup, groups);
      const checkpoint::PosixStorage storage(world.rank() == victim ? hook : nullptr);
      checkpoint::CheckpointConfig config;
      config.every = 2, config.keep = 10, config.grace_s = 0;
          RunCheckpoints checkpoints(config, {.run_dir = run_dir_, .run_id = "test", .storage_of = [&](const auto&) -> const auto& { return storage; }
  }, model, groups);
  body(checkpoints, world.rank());
        },
        options);
        }

        static void after_step(RunCheckpoints& checkpoints, int64_t step, const std::function<void()>& once_replaced = {}) {
          checkpoints.after_step({.step = step}, {}, [&]() -> std::string {
            if (once_replaced) once_replaced();
            return "{}";
          });
        }
        static void finish(RunCheckpoints& checkpoints, int64_t step) {
          checkpoints.finish({.step = step}, [] { return "{}"; });
        }
        // Steps of records; those of failed saves negative.
        static void add_records(RunCheckpoints& checkpoints, std::vector<int64_t>& steps, std::string& failures) {
          for (const auto& record : checkpoints.take_records()) {
            if (record.at("kind") != "save") continue;
            const bool failed = record.contains("failure");
            steps.push_back(record.at("step").get<int64_t>() * (failed ? -1 : 1));
            if (failed) failures += record.at("failure").get<std::string>();
          }
        }
        std::vector<int64_t> sound_steps() const {
          std::vector<int64_t> steps;
          for (const auto& one : checkpoint::all(folder_)) {
            EXPECT_TRUE(checkpoint::verify(one.path).sound()) << one.path;
            steps.push_back(one.step);
          }
          std::sort(steps.begin(), steps.end());
          return steps;
        }
        };

        TEST_F(LostRanks, get_another_group_and_the_next_save_succeeds) {
          std::binary_semaphore storage_answers(0);
          Hang hang(checkpoint::Call::open, ".step_00000004", [&] { storage_answers.acquire(); });  // of its data
          std::barrier<> together(kRanks);
          std::vector<int64_t> recorded;
          std::string failures;
          run(
              [&](RunCheckpoints& checkpoints, int rank) {
                EXPECT_FALSE(checkpoints.restore());
                checkpoints.prepare();
                for (int64_t step = 1; step <= 4; ++step) after_step(checkpoints, step);
                if (rank == 0) {
                  while (recorded != std::vector<int64_t>{2, -4}) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(20));
                    after_step(checkpoints, 5);
                    add_records(checkpoints, recorded, failures);
                  }
                }
                together.arrive_and_wait();
                // The storage of rank 1 still hangs while the others have their new group already.
                after_step(checkpoints, 6, [&] {
                  if (rank == 0) storage_answers.release();
                });
                finish(checkpoints, 8);
                if (rank == 0) add_records(checkpoints, recorded, failures);
              },
              1, &hang);
          EXPECT_TRUE(hang.has_hung);
          EXPECT_THAT(recorded, ElementsAre(2, -4, 6, 8));
          EXPECT_THAT(failures, HasSubstr("rank 1"));
          EXPECT_THAT(failures, HasSubstr("resilience.comm_timeout_s"));
          EXPECT_THAT(sound_steps(), ElementsAre(2, 6, 8));
          std::vector<std::string> hidden;
          for (const auto& entry : fs::directory_iterator(folder_))
            if (entry.path().filename().string().starts_with(".")) hidden.push_back(entry.path().filename());
          EXPECT_THAT(hidden, ElementsAre());
          run([&](RunCheckpoints& checkpoints, int) {
            const auto restored = checkpoints.restore();
            ASSERT_TRUE(restored);
            EXPECT_EQ(restored->progress.step, 8);
          });
        }

        // It used to be replaced unheard: neither the log nor checkpoints.jsonl said how its save ended.
        TEST_F(LostRanks, that_hang_themselves_still_tell_how_their_save_ended) {
          std::binary_semaphore storage_answers(0);
          Hang hang(checkpoint::Call::rename, ".step_00000004", [&] { storage_answers.acquire(); });  // the commit
          std::barrier<> together(kRanks);
          std::vector<int64_t> recorded;
          std::string failures;
          run(
              [&](RunCheckpoints& checkpoints, int rank) {
                checkpoints.prepare();
                for (int64_t step = 1; step <= 4; ++step) after_step(checkpoints, step);
                if (rank == 0)
                  while (!hang.has_hung) std::this_thread::sleep_for(std::chrono::milliseconds(20));
                if (rank == 0) std::this_thread::sleep_for(kPatience + std::chrono::seconds(1));
                together.arrive_and_wait();
                for (int64_t step = 5; step <= 6; ++step)
                  after_step(checkpoints, step, [&] {
                    if (rank == 1) storage_answers.release();
                  });
                finish(checkpoints, 6);
                if (rank == 0) add_records(checkpoints, recorded, failures);
              },
              0, &hang);
          EXPECT_THAT(recorded, ElementsAre(2, 4, 6));
          EXPECT_EQ(failures, "");
          EXPECT_THAT(sound_steps(), ElementsAre(2, 4, 6));
        }

        // Rank 0 left, content with the checkpoint that the others had given up, and these died waiting for it to save once more.
        TEST_F(LostRanks, agree_whether_the_last_step_is_saved) {
          Hang hang(checkpoint::Call::rename, ".step_00000004", [] { std::this_thread::sleep_for(kPatience * 3 / 2); });
          std::vector<int64_t> recorded;
          std::string failures;
          run(
              [&](RunCheckpoints& checkpoints, int rank) {
                checkpoints.prepare();
                for (int64_t step = 1; step <= 4; ++step) after_step(checkpoints, step);
                finish(checkpoints, 4);
                if (rank == 0) add_records(checkpoints, recorded, failures);
              },
              0, &hang);
          EXPECT_THAT(recorded, ElementsAre(2, 4, 4));
          EXPECT_EQ(failures, "");
          EXPECT_THAT(sound_steps(), ElementsAre(2, 4));
        }

        }  // namespace
        }  // namespace ingot::train
