// The pipeline over thread ranks: messages travel while the next pass computes.
#include "parallel/pipeline.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "comm/world.h"

namespace ingot::parallel {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPass = std::chrono::milliseconds(20);
constexpr int64_t kElements = 1 << 16;

// Sleeps instead of computing; a stream holds the number of its microbatch, which every stage counts up.
class SleepingStage : public PipelineStage {
 public:
  SleepingStage(int rank, int stages) : rank_(rank), stages_(stages) {}
  std::vector<at::Tensor> empty_stream() override { return {at::empty({kElements})}; }
  std::vector<at::Tensor> forward(int, int microbatch, const std::vector<at::Tensor>& in) override {
    std::this_thread::sleep_for(kPass);
    if (rank_ > 0) {
      EXPECT_EQ(in.at(0).max().item<float>(), static_cast<float>(microbatch + rank_));
    }
    if (rank_ + 1 == stages_) return {};
    return {at::full({kElements}, microbatch + rank_ + 1.0)};
  }
  std::vector<at::Tensor> backward(int, int microbatch, const std::vector<at::Tensor>& gradients) override {
    std::this_thread::sleep_for(kPass);
    if (rank_ + 1 < stages_) {
      EXPECT_EQ(gradients.at(0).max().item<float>(), static_cast<float>(100 + microbatch));
    }
    return rank_ == 0 ? std::vector<at::Tensor>{} : std::vector{at::full({kElements}, 100.0 + microbatch)};
  }
  void weights(int, int) override {}

 private:
  int rank_, stages_;
};

// Every message takes as long as a pass: a stage that waited for its messages to be gone would take twice as long.
TEST(Pipeline, messages_travel_while_the_next_pass_computes) {
  constexpr int kStages = 2, kMicrobatches = 8;
  comm::WorldOptions options;
  options.delay.bytes_per_s = kElements * 4 / 20e-3;
  double seconds = 0;
  comm::run_ranks(
      kStages,
      [&](comm::World& world) {
        SleepingStage stage(world.rank(), kStages);
        world.everyone().barrier();
        const auto start = Clock::now();
        run_pipeline({Schedule::gpipe, kStages, 1, kMicrobatches}, world.everyone(), stage);
        if (world.rank() == 0) seconds = std::chrono::duration<double>(Clock::now() - start).count();
      },
      options);
  const double compute = 2 * (kMicrobatches + kStages - 1) * 0.020, message = 0.020;
  EXPECT_GE(seconds, compute + 2 * message);
  EXPECT_LE(seconds, compute + 2 * message + 0.1) << "by turns: " << compute + 2 * kMicrobatches * message;  // the remainder: the scheduler
}

}  // namespace
}  // namespace ingot::parallel
