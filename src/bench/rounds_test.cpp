#include "bench/rounds.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace ingot::bench {
namespace {

plan::MachineProfile round_of(double gemm, double forward_s, double operation_s) {
  plan::MachineProfile p;
  p.gemm = {{"fp32", "plain", "forward", 64, 64, 64, gemm}, {"bf16", "plain", "forward", 64, 64, 64, 2 * gemm}};
  p.kernels = {{"rms_norm", "fp32", 64, 64, 1, forward_s, 2 * forward_s}};
  p.operation_s = operation_s;
  return p;
}

TEST(Rounds, middle_is_of_each_figure_by_itself) {
  const auto p = middle_of({round_of(3, 10, 1), round_of(1, 30, 3), round_of(2, 20, 2)});
  ASSERT_EQ(p.gemm.size(), 2U);
  EXPECT_EQ(p.gemm[0].flops_per_s, 2);
  EXPECT_EQ(p.gemm[1].flops_per_s, 4);
  EXPECT_EQ(p.kernels[0].forward_s, 20);
  EXPECT_EQ(p.kernels[0].backward_s, 40);
  EXPECT_EQ(p.operation_s, 2);
}

// A measurement that one round had to leave out moves those behind it; a round that was stopped lacks its end.
TEST(Rounds, entries_are_found_by_what_they_are_of) {
  auto second = round_of(1, 30, 0), third = round_of(2, 20, 2);
  second.gemm.erase(second.gemm.begin());
  third.kernels.clear();
  const auto p = middle_of({round_of(5, 10, 1), second, third});
  ASSERT_EQ(p.gemm.size(), 2U);
  EXPECT_EQ(p.gemm[0].flops_per_s, 3.5) << "of two rounds, 5 and 2";
  EXPECT_EQ(p.gemm[1].flops_per_s, 4) << "of 10, 2 and 4";
  EXPECT_EQ(p.kernels[0].forward_s, 20) << "of two rounds, 10 and 30";
  EXPECT_EQ(p.operation_s, 1.5);
}

TEST(Rounds, a_slow_minute_is_not_a_factor_within_steps) {
  std::vector<plan::MachineProfile> rounds(3);
  rounds[0].within_steps = {{"fp32", "matmul", 1.0, 1.0}, {"fp32", "data", 0.1, 0}};
  rounds[1].within_steps = {{"fp32", "matmul", 3.3, 3.0}, {"fp32", "data", 0.3, 0}};  // all of it slow
  rounds[2].within_steps = {{"fp32", "matmul", 2.8, 1.1}, {"fp32", "data", 0.2, 0}};  // steps alone
  const auto p = middle_of(rounds);
  ASSERT_EQ(p.within_steps.size(), 2U);
  EXPECT_DOUBLE_EQ(p.within_steps[0].measured_s / p.within_steps[0].predicted_s, 1.1);
  EXPECT_EQ(p.within_steps[0].predicted_s, 1.1);
  EXPECT_EQ(p.within_steps[1].measured_s, 0.2);
}

TEST(Rounds, one_round_is_its_own_middle_and_none_has_none) {
  EXPECT_EQ(middle_of({round_of(3, 10, 1)}).to_json(), round_of(3, 10, 1).to_json());
  EXPECT_THROW(middle_of({}), std::invalid_argument);
}

}  // namespace
}  // namespace ingot::bench
