// Sweeps of a mixture: what they hold equal to the rounding of widths, the fronts against brute force, and directions that are sure.
#include "plan/expert_width.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/test_support.h"

namespace ingot::plan {
namespace {

schedule::Cluster cluster_of(double memory_bytes = 64e9) {
  schedule::Cluster c;
  c.name = "round";
  c.devices_per_node = 4;
  c.memory_bytes = memory_bytes;
  c.memory_bytes_per_s = 1e12;
  c.kernel_launch_s = 1e-6;
  c.node = {schedule::Links::Shape::any, 1e11, 1e-6};
  c.compute = {{.dtype = "bf16",
                .gemm_flops_per_s = 1e14,
                .half_m = 64,
                .half_n = 64,
                .half_k = 64,
                .attention_flops_per_s = 5e13,
                .attention_backward_flops_per_s = 4e13,
                .half_queries = 64,
                .half_keys = 64,
                .state_flops_per_s = 1e13}};
  return c;
}

ExpertSweep sweep_of(Equal equal = Equal::flops) {
  ExpertSweep sweep;
  auto& c = sweep.base;
  c.family = "zaya1";
  c.layers = 2;
  c.hidden = 256;
  c.vocab_size = 1024;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_dim = 64;
  c.experts = 8;
  c.top_k = 1;
  c.expert_ffn = 512;
  c.router_hidden = 64;
  c.rope_fraction = 0.5;
  sweep.equal = equal;
  sweep.multiple = 16;
  sweep.job = {.batch = 32, .seq = 512};
  sweep.context = sweep.prompt = 512;
  return sweep;
}

std::vector<ExpertChoice> choices_of(const ExpertSweep& sweep, double memory_bytes = 64e9) {
  DataParallel devices(device_of(cluster_of(memory_bytes), "bf16", 0));
  return sweep_experts(sweep, devices);
}

TEST(ExpertWidth, is_what_equal_flops_leave_beside_the_router) {
  const auto base = sweep_of().base;
  for (const int64_t experts : {4, 8, 32, 256})
    for (const int64_t top_k : {1, 2, 4}) {
      // 6 hidden width top_k for the experts, and 2 router classes for the last of the router's GEMMs.
      const double exact = (6.0 * 256 * 512 + 2.0 * 64 * static_cast<double>(8 - experts)) / (6.0 * 256 * static_cast<double>(top_k));
      EXPECT_EQ(equal_width(base, Equal::flops, experts, top_k, 1, 512), std::llround(exact)) << experts << " " << top_k;
      // The same in elements: three matrices of hidden x width, and the router's rows.
      EXPECT_EQ(equal_width(base, Equal::active, experts, top_k, 1, 512), std::llround(exact)) << experts << " " << top_k;
    }
  EXPECT_EQ(equal_width(base, Equal::flops, 8, 4, 64, 512), 128);
  EXPECT_EQ(equal_width(base, Equal::flops, 8, 8, 128, 512), 128);  // one multiple at least
}

TEST(ExpertWidth, all_choices_have_equal_flops_or_active_parameters_to_half_a_multiple) {
  for (const auto equal : {Equal::flops, Equal::active}) {
    const auto sweep = sweep_of(equal);
    const auto choices = choices_of(sweep);
    ASSERT_GT(choices.size(), 15U);
    for (const auto& c : choices) {
      // Of the width: in two layers, three matrices of hidden, for as many experts as a token uses.
      const double slack = 0.5 * static_cast<double>(sweep.multiple * 2 * 3 * 256 * c.top_k) * 1.0001;
      EXPECT_LE(std::abs(c.flops_per_token - choices.front().flops_per_token), 3 * 2 * slack) << c.experts << " " << c.top_k;
      EXPECT_LE(std::abs(static_cast<double>(c.active_parameters - choices.front().active_parameters)), slack + 1)
          << c.experts << " " << c.top_k;
      EXPECT_EQ(c.expert_ffn % sweep.multiple, 0);
    }
  }
}

TEST(ExpertWidth, fronts_are_what_brute_force_finds) {
  const auto choices = choices_of(sweep_of());
  size_t on_front = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto& c = choices[i];
    const auto is_beaten = [&](bool decode, bool with_capacity) {
      for (const auto& o : choices) {
        const double mine = decode ? c.decode.total_s : c.prefill.total_s, other = decode ? o.decode.total_s : o.prefill.total_s;
        const bool no_worse = o.tokens_per_s() >= c.tokens_per_s() && other <= mine && (!with_capacity || o.parameters >= c.parameters);
        const bool better = o.tokens_per_s() > c.tokens_per_s() || other < mine || (with_capacity && o.parameters > c.parameters);
        if (no_worse && better) return true;
      }
      return false;
    };
    EXPECT_EQ(c.on_decode_front, !is_beaten(true, false));
    EXPECT_EQ(c.on_prefill_front, !is_beaten(false, false));
    EXPECT_EQ(c.on_decode_capacity_front, !is_beaten(true, true));
    EXPECT_EQ(c.on_prefill_capacity_front, !is_beaten(false, true));
    for (const bool decode : {true, false})
      for (const bool with_capacity : {true, false}) {
        const auto by = dominator_of(choices, i, decode, with_capacity);
        EXPECT_EQ(by.exists, is_beaten(decode, with_capacity));
        if (by.exists) {
          EXPECT_NEAR(by.gains[0], choices[by.point].tokens_per_s() / c.tokens_per_s(), 1e-12);
        }
      }
    on_front += c.on_decode_front ? 1 : 0;
  }
  EXPECT_GE(on_front, 1U);
  EXPECT_LT(on_front, choices.size());
}

TEST(ExpertWidth, more_experts_need_memory_and_give_each_fewer_tokens) {
  const auto choices = choices_of(sweep_of());
  EXPECT_TRUE(choices.front().is_base);
  EXPECT_EQ(std::count_if(choices.begin(), choices.end(), [](const auto& c) { return c.is_base; }), 1);
  for (const auto& a : choices)
    for (const auto& b : choices) {
      if (a.top_k != b.top_k || a.experts >= b.experts) continue;
      EXPECT_LT(a.parameters, b.parameters);
      EXPECT_LT(a.run->memory.state_bytes(), b.run->memory.state_bytes());
      // A token reads as much of either, to the router's rows and the rounding of widths, of which several experts have more.
      if (a.top_k == 1) {
        EXPECT_NEAR(a.decode.weight_bytes / b.decode.weight_bytes, 1, 0.03);
      }
      EXPECT_NEAR(a.tokens_per_expert / static_cast<double>(a.run->shape.microbatch) * static_cast<double>(a.experts),
                  b.tokens_per_expert / static_cast<double>(b.run->shape.microbatch) * static_cast<double>(b.experts), 1e-6);
    }
}

TEST(ExpertWidth, what_does_not_fit_is_on_no_front) {
  const auto choices = choices_of(sweep_of(), 120e6);
  const auto fit = std::count_if(choices.begin(), choices.end(), [](const auto& c) { return c.fits(); });
  ASSERT_GT(fit, 0);
  ASSERT_LT(fit, static_cast<int64_t>(choices.size()));
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto& c = choices[i];
    if (c.fits()) continue;
    EXPECT_GT(static_cast<double>(c.memory.total_bytes()), 0.94 * 120e6);
    EXPECT_FALSE(c.on_decode_front || c.on_prefill_front || c.on_decode_capacity_front || c.on_prefill_capacity_front);
    EXPECT_FALSE(dominator_of(choices, i, true, false).exists);
  }
}

TEST(ExpertWidth, needs_experts) {
  auto sweep = sweep_of();
  sweep.base = small_model("llama");
  EXPECT_THROW(choices_of(sweep), base::UsageError);
}

TEST(DataParallel, takes_the_fastest_of_all_that_fits) {
  const auto sweep = sweep_of();
  const auto model = models::create_model(sweep.base);
  for (const double memory_bytes : {64e9, 400e6, 120e6}) {
    DataParallel devices(device_of(cluster_of(memory_bytes), "bf16", 1000));
    const auto best = devices.best(*model, sweep.job);
    ASSERT_TRUE(best);
    EXPECT_EQ(best->tokens_per_step(), 32 * 512);
    EXPECT_LE(static_cast<double>(best->memory.total_bytes()), 0.94 * memory_bytes);
    // Everything, with no rule of what cannot be best.
    CommunicationModel communication(cluster_of(memory_bytes));
    PassPrices prices(devices.rates(), communication.transport());
    double least_s = INFINITY;
    for (const int64_t microbatch : {1, 2, 4, 8})
      for (const int64_t zero : {1, 2, 3})
        for (const auto recompute : {models::Recompute::none, models::Recompute::selective, models::Recompute::full}) {
          auto run = best->shape;
          run.microbatch = microbatch;
          run.zero = zero;
          run.recompute = recompute;
          if (static_cast<double>(predict_memory(*model, run, 1000, prices.traces()).total_bytes()) > 0.94 * memory_bytes) continue;
          const auto time = predict_step_time(*model, run, prices);
          least_s = std::min(least_s, time.total_s() + communication.predict(*model, run, time, prices).total_s());
        }
    EXPECT_NEAR(best->step_s() / least_s, 1, 0.02);  // more sharing may pay a little for a weaker recomputation
  }
  DataParallel none(device_of(cluster_of(1e6), "bf16", 0));
  EXPECT_FALSE(none.best(*model, sweep.job));
  EXPECT_GT(none.least_memory(*model, sweep.job).total_bytes(), 1000000);
}

}  // namespace
}  // namespace ingot::plan
