#include "plan/gemm_backend_choice.h"

#include <gtest/gtest.h>

#include "plan/test_support.h"

namespace ingot::plan {
namespace {

// Two shapes at 1e11 FLOP/s by the default library, at `rate` by the other; the middle half is `spread` wide on both sides.
MachineProfile measured(double rate, double spread) {
  auto p = round_machine(1e11, 2e10);
  for (const int64_t m : {64, 512})
    for (const auto& [library, flops] : {std::pair{"default", 1e11}, std::pair{"onednn", rate}})
      p.libraries.push_back({"fp32", library, "forward", m, 512, 512, flops, flops * (1 - spread), flops * (1 + spread)});
  return p;
}

std::string chosen(const MachineProfile& p) {
  return choose_library(p, "fp32", [](const MachineProfile& one) { return measured_seconds(one, "fp32"); }).library;
}

TEST(GemmBackendChoice, is_another_one_only_when_clearly_faster) {
  EXPECT_EQ(chosen(measured(1.1e11, 0.02)), "onednn");
  EXPECT_EQ(chosen(measured(1.02e11, 0.001)), "default") << "2 % are not worth it";
  EXPECT_EQ(chosen(measured(1.1e11, 0.1)), "default") << "within the noise";
  EXPECT_EQ(chosen(measured(0.5e11, 0.01)), "default");
  EXPECT_EQ(chosen(round_machine(1e11, 2e10)), "default") << "nothing was measured";
  auto lone = measured(2e11, 0.01);
  std::erase_if(lone.libraries, [](const auto& e) { return e.library == "default"; });
  EXPECT_EQ(chosen(lone), "default") << "nothing to compare with";
}

TEST(GemmBackendChoice, weighs_shapes_as_the_caller_does) {
  auto p = measured(1e11, 0.01);
  for (auto& e : p.libraries)
    if (e.library == "onednn") e.flops_per_s = e.low_flops_per_s = e.high_flops_per_s = e.m == 64 ? 2e11 : 0.5e11;
  const auto only = [&](int64_t m) {
    return choose_library(p, "fp32",
                          [m](const MachineProfile& one) {
                            for (const auto& e : one.gemm)
                              if (e.dtype == "fp32" && e.m == m && e.n == 512) return 1 / e.flops_per_s;
                            return 0.0;
                          })
        .library;
  };
  EXPECT_EQ(only(64), "onednn");
  EXPECT_EQ(only(512), "default");
}

}  // namespace
}  // namespace ingot::plan
