#include "plan/kernel_limits.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "optim/operators.h"
#include "plan/report/kernel_limits.h"

namespace ingot::plan {
namespace {

const KernelLimit& find(const std::vector<KernelLimit>& limits, const std::string& name, bool is_backward) {
  for (const auto& limit : limits)
    if (limit.name == name && limit.is_backward == is_backward) return limit;
  throw std::runtime_error("no limit of " + name);
}

schedule::Cluster round_cluster() {
  schedule::Cluster cluster;
  cluster.name = "round", cluster.memory_bytes_per_s = 1e12;
  cluster.compute = {{.dtype = "bf16", .gemm_flops_per_s = 1e14}};
  return cluster;
}

// By hand: SwiGLU reads two numbers for one that it writes, and backward three for two.
TEST(KernelLimits, are_bytes_over_bandwidth_or_flops_over_their_rate) {
  const auto limits = kernel_limits(optim::operators(), round_cluster(), "bf16");
  const auto &forward = find(limits, "swiglu", false), &backward = find(limits, "swiglu", true);
  const auto elements = static_cast<double>(forward.rows * forward.width);
  EXPECT_DOUBLE_EQ(forward.moved_bytes, 2 * 3 * elements);
  EXPECT_DOUBLE_EQ(backward.moved_bytes, 2 * 5 * elements);
  EXPECT_DOUBLE_EQ(forward.least_s(), forward.moved_bytes / 1e12);
  EXPECT_TRUE(forward.is_bound_by_memory());
  const auto& mix = find(limits, "cca_mix", false);
  EXPECT_GT(mix.flops, 0);
  EXPECT_DOUBLE_EQ(mix.compute_s, mix.flops / 1e14);
}

TEST(KernelLimits, have_what_runs_fused_on_gpus_and_only_that) {
  const auto limits = kernel_limits(optim::operators(), round_cluster(), "bf16");
  for (const auto& op : optim::operators()) {
    const bool is_there = std::ranges::any_of(limits, [&](const auto& limit) { return limit.name == op.name; });
    const bool belongs = op.cost && op.measured && std::ranges::find(op.fused_on, device::Target::gpu) != op.fused_on.end();
    EXPECT_EQ(is_there, belongs) << op.name;
  }
}

TEST(KernelLimits, of_several_devices_stand_side_by_side) {
  auto slow = round_cluster();
  slow.memory_bytes_per_s /= 2;
  const auto all = optim::operators();
  const auto document = kernel_limits_document({round_cluster(), slow},
                                               {kernel_limits(all, round_cluster(), "bf16"), kernel_limits(all, slow, "bf16")}, "bf16");
  ASSERT_EQ(document.json["clusters"].size(), 2u);
  const auto &one = document.json["clusters"][0]["kernels"][0], &other = document.json["clusters"][1]["kernels"][0];
  EXPECT_EQ(one["kernel"], other["kernel"]);
  EXPECT_DOUBLE_EQ(2 * one["memory_s"].get<double>(), other["memory_s"].get<double>());
  EXPECT_NE(document.text.find("device 2"), std::string::npos);
}

TEST(KernelLimits, need_rates_of_the_dtype) {
  EXPECT_THROW(kernel_limits(optim::operators(), round_cluster(), "fp32"), base::ProfileError);
}

}  // namespace
}  // namespace ingot::plan
