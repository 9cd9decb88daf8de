#include "report/profile/facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "report/profile/difference.h"
#include "report/profile/test_profile.h"

namespace ingot::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ProfileFacts, intensities_are_flops_over_bytes_moved_once) {
  // By hand: 2 x 2 x 3 x 5 = 60 FLOPs; 10 + 15 + 6 elements.
  EXPECT_DOUBLE_EQ(intensity_of(plan::GemmRate{"fp32", "plain", "forward", 2, 3, 5, 1}), 60.0 / (31 * 4));
  EXPECT_DOUBLE_EQ(intensity_of(plan::GemmRate{"bf16", "plain", "forward", 2, 3, 5, 1}), 60.0 / (31 * 2));
  EXPECT_DOUBLE_EQ(intensity_of(plan::GemmRate{"bf16", "plain", "grad_weight", 2, 3, 5, 1}), 60.0 / (25 * 2 + 6 * 8));
  // 3 tokens see 6 pairs: 4 x 6 x 4 heads x 8 = 768 FLOPs a row; q and o 96, k and v 48 elements each.
  const plan::AttentionTime a{"bf16", 2, 3, 4, 2, 8, 1, 1};
  EXPECT_DOUBLE_EQ(flops_of(a, false), 2 * 768);
  EXPECT_DOUBLE_EQ(flops_of(a, true), 4 * 768);
  EXPECT_DOUBLE_EQ(intensity_of(a), 768.0 / (2 * (96 + 48) * 2));
}

TEST(ProfileFacts, memory_is_triad_at_its_largest_size_and_steps_are_where_it_falls) {
  const auto p = profile_of_formulas();
  EXPECT_DOUBLE_EQ(memory_bytes_per_s(p), 2e10);
  const auto steps = cache_steps(p.memory, "triad");
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].fits_bytes, 3 << 20);
  EXPECT_EQ(steps[0].exceeds_bytes, 3 << 22);
  EXPECT_DOUBLE_EQ(steps[0].before_bytes_per_s, 8e10);
  EXPECT_EQ(cache_steps(p.memory, "dot")[0].fits_bytes, 2 << 20);
  EXPECT_DOUBLE_EQ(plan::memory_bytes_per_s({}), 0);
}

TEST(ProfileFacts, attention_turns_where_memory_and_the_best_product_take_equally_long) {
  auto p = profile_of_formulas();
  const auto curves = attention_curves(p);
  ASSERT_EQ(curves.size(), 4u);
  for (const auto& curve : curves) {
    const double best = curve.backward ? 2e10 : 4e10;
    EXPECT_NEAR(curve.best_flops_per_s, best, 1e-3 * best);
    EXPECT_EQ(*curve.measured_seq, 512);
    // The time of that length is the same by either limit.
    const double seq = *curve.turn_seq, size = curve.dtype == "bf16" ? 2 : 4, peak = curve.dtype == "bf16" ? 2e11 : 1e11;
    EXPECT_GT(seq, 1);
    const double flops = 4 * (seq * (seq + 1) / 2) * 8 * 64, bytes = 4 * seq * 8 * 64 * size;
    EXPECT_NEAR(flops / peak, bytes / 2e10, 1e-9 * bytes / 2e10);
  }
  p.gemm.clear();
  EXPECT_FALSE(attention_curves(p)[0].turn_seq) << "no balance without GEMMs";
}

TEST(ProfileFacts, attention_of_other_shapes_has_curves_of_its_own) {
  plan::MachineProfile p;
  p.attention = {{"fp32", 1, 128, 8, 8, 64, 1, 1},
                 {"fp32", 1, 256, 8, 8, 64, 1, 1},
                 {"fp32", 1, 256, 8, 2, 64, 1, 1},
                 {"fp32", 1, 256, 8, 8, 64, 1, 1, 32}};
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& curve : attention_curves(p)) all.insert(curve.name());
    return all;
  };
  EXPECT_THAT(names(), ElementsAre("head of 64, 8/2 heads", "head of 64, 8/8 heads", "head of 64, 8/8 heads, window 32"));
  p.attention.push_back({"fp32", 2, 256, 8, 8, 64, 1, 1});
  EXPECT_THAT(names(), ElementsAre("head of 64, 8/2 heads, batch 1", "head of 64, 8/8 heads, batch 1", "head of 64, 8/8 heads, batch 2",
                                   "head of 64, 8/8 heads, window 32, batch 1"));
}

TEST(ProfileFacts, collectives_have_the_line_that_made_them) {
  auto p = profile_of_formulas();
  std::reverse(p.collectives.begin(), p.collectives.end());
  const auto lines = collective_lines(p);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NEAR(lines[0].line.latency_s, 1e-5, 1e-9);
  EXPECT_NEAR(lines[0].line.bytes_per_s, 1e9, 1e4);
  EXPECT_LT(lines[0].line.largest_error, 1e-6);
  EXPECT_EQ(lines[0].line.knee_bytes, 1 << 18) << "262 us and 10 of latency; 32 KiB take 33 and 10";
  EXPECT_NEAR(lines[0].best_bus_bandwidth(), 1.5e9, 0.01e9) << "2 (n - 1) / n of 4 ranks";
}

TEST(ProfileDifference, ratios_are_sorted_by_loss_and_summed_up_by_section) {
  Measured first{.name = "a", .has_profile = true, .profile = profile_of_formulas(), .descriptions = {}}, second = first;
  second.name = "b";
  second.profile.gemm[3].flops_per_s *= 0.25;
  second.profile.attention[1].backward_s *= 2;
  second.profile.memory.pop_back();
  first.profile.memory.push_back(first.profile.memory[0]);
  second.profile.collectives[0].seconds /= 2;
  const auto all = differences(first, second);
  const auto& p = first.profile;
  EXPECT_EQ(all.size(), p.gemm.size() + 2 * p.attention.size() + p.memory.size() - 2 + 2 * p.kernels.size() + p.collectives.size());
  EXPECT_DOUBLE_EQ(all[0].ratio(), 0.25);
  EXPECT_EQ(all[0].section, "GEMMs fp32");
  EXPECT_EQ(all[0].what, "forward 64 × 64 × 256");
  EXPECT_DOUBLE_EQ(all[1].ratio(), 0.5);
  EXPECT_THAT(all[1].what, HasSubstr("backward, 512 tokens"));
  EXPECT_DOUBLE_EQ(all.back().ratio(), 2);
  const auto sections = by_section(all);
  std::vector<std::string> names;
  for (const auto& s : sections) names.push_back(s.section);
  EXPECT_THAT(names, ElementsAre("GEMMs bf16", "GEMMs fp32", "memory", "attention bf16", "attention fp32", "kernels bf16", "kernels fp32",
                                 "collectives fp32"));
  EXPECT_DOUBLE_EQ(sections[1].median_ratio, 1);
  EXPECT_DOUBLE_EQ(sections[1].worst.ratio(), 0.25);
  EXPECT_EQ(sections[2].count, p.memory.size() - 2) << "what one says twice counts once, what one lacks not";
}

TEST(ProfileDifference, what_makes_machines_hard_to_compare_is_said) {
  Measured first{.name = "a", .has_profile = true, .profile = profile_of_formulas(), .descriptions = {}}, second = first;
  EXPECT_THAT(comparison_warnings(first, second), ElementsAre());
  second.profile.threads = 8;
  second.profile.torch = "2.12.0";
  second.profile.device = "cuda:0";
  second.profile.quick = true;
  second.profile.foreign_load = 0.5;
  std::erase_if(second.profile.gemm, [](const auto& e) { return e.dtype == "bf16"; });
  std::erase_if(second.profile.attention, [](const auto& e) { return e.dtype == "bf16"; });
  std::erase_if(second.profile.kernels, [](const auto& e) { return e.dtype == "bf16"; });
  EXPECT_THAT(comparison_warnings(first, second),
              ElementsAre(HasSubstr("devices differ: cpu and cuda:0"), HasSubstr("threads differ: 4 and 8"), HasSubstr("torch differ"),
                          HasSubstr("dtypes differ: fp32, bf16 and fp32"), HasSubstr("quick"), HasSubstr("50 %")));
  second.has_profile = false;
  EXPECT_THAT(comparison_warnings(first, second)[0], HasSubstr("collectives only"));
}

}  // namespace
}  // namespace ingot::report
