#include "plan/within_steps.h"

#include <gtest/gtest.h>

#include "plan/profile.h"

namespace ingot::plan {
namespace {

MachineProfile measured() {
  MachineProfile p;
  p.within_steps = {{"fp32", "matmul", 0.6, 0.5}, {"fp32", "norms", 0.3, 0.2},        {"fp32", "attention", 0.1, 0.1},
                    {"fp32", "data", 0.01, 0},    {"fp32", "unattributed", 0.09, 0},  {"fp32", "communication", 0.26, 0.15},
                    {"bf16", "matmul", 9, 1},     {"bf16", "communication", 0.1, 0.2}};
  return p;
}

TEST(WithinSteps, work_takes_as_much_longer_as_it_did_there) {
  const WithinStepsFactors factors(measured(), "fp32");
  EXPECT_DOUBLE_EQ(factors.of(WorkKind::matmul), 1.2);
  EXPECT_DOUBLE_EQ(factors.of(WorkKind::norms), 1.5);
  EXPECT_DOUBLE_EQ(factors.of(WorkKind::attention), 1);
  EXPECT_DOUBLE_EQ(factors.of(WorkKind::muon), 1) << "was not measured";
  EXPECT_DOUBLE_EQ(factors.between(), 0.1 / 1.0) << "what has no prediction, of what has one";
  EXPECT_DOUBLE_EQ(factors.uneven(), 0.11 / 1.1) << "beyond the messages";
}

TEST(WithinSteps, what_is_out_of_all_proportion_does_not_count) {
  const WithinStepsFactors factors(measured(), "bf16");
  EXPECT_DOUBLE_EQ(factors.of(WorkKind::matmul), 4);
  EXPECT_DOUBLE_EQ(factors.uneven(), 0) << "messages were faster than predicted";
}

TEST(WithinSteps, without_them_nothing_takes_longer) {
  for (const auto& factors : {WithinStepsFactors(), WithinStepsFactors(MachineProfile(), "fp32"), WithinStepsFactors(measured(), "fp64")}) {
    EXPECT_EQ(factors.of(WorkKind::matmul), 1);
    EXPECT_EQ(factors.between(), 0);
    EXPECT_EQ(factors.uneven(), 0);
  }
}

TEST(WithinSteps, are_kept_in_the_profile) {
  auto p = measured();
  p.host = p.cpu = p.torch = p.program = p.date = "x";
  p.cores = p.threads = 1;
  const auto again = MachineProfile::from_json(p.to_json(), "again");
  ASSERT_EQ(again.within_steps.size(), p.within_steps.size());
  EXPECT_EQ(again.within_steps[1].kind, "norms");
  EXPECT_EQ(again.within_steps[1].measured_s, 0.3);
  p.within_steps[0].kind = "magic";
  EXPECT_ANY_THROW(MachineProfile::from_json(p.to_json(), "again"));
}

}  // namespace
}  // namespace ingot::plan
