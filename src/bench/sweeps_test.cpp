#include "bench/sweeps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/error.h"
#include "bench/library_race.h"
#include "bench/operations.h"
#include "bench/suite.h"
#include "kernels/gemm_backend.h"

namespace ingot::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Repeats kOnce{0, 1, 1, 0, 0};
const Setting kSetting{{"fp32"}, kOnce, at::kCPU};

plan::MachineProfile measured(const std::vector<Measurement>& measurements) {
  plan::MachineProfile profile;
  for (const auto& m : measurements) m.run(profile);
  return profile;
}

template <class Sweep>
std::string error_of(const Sweep& sweep) {
  try {
    measurements_of(sweep, kSetting);
  } catch (const base::UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(SharedOut, rows_add_up_and_the_largest_has_its_share) {
  EXPECT_THAT(shared_out(32, 4, 1), ElementsAre(8, 8, 8, 8));
  for (const int64_t groups : {1, 3, 16, 200}) {
    for (const double imbalance : {1.0, 1.5, 3.0, 16.0}) {
      if (imbalance > static_cast<double>(groups)) continue;
      const int64_t rows = groups * 1000;
      const auto counts = shared_out(rows, groups, imbalance);
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), int64_t{0}), rows);
      EXPECT_EQ(counts.size(), static_cast<size_t>(groups));
      EXPECT_NEAR(static_cast<double>(counts[0]), 1000 * imbalance, 2) << groups;
      for (size_t i = 0; i < counts.size(); ++i) EXPECT_GE(counts[i], 0);
    }
  }
  EXPECT_THAT(shared_out(3, 8, 1), ::testing::SizeIs(8)) << "fewer rows than groups";
}

TEST(GemmSweep, every_combination_with_the_sizes_of_each_pass) {
  const GemmSweep sweep{
      .m = {6}, .n = {4}, .k = {10}, .kinds = {"plain", "batched", "grouped"}, .passes = {}, .groups = {2, 3}, .imbalance = {1, 2}};
  const auto profile = measured(measurements_of(sweep, kSetting));
  std::set<std::string> seen;
  for (const auto& e : profile.gemm) {
    EXPECT_GT(e.flops_per_s, 0);
    seen.insert(fmt::format("{} {} {} {} {} {} {}", e.kind, e.pass, e.m, e.n, e.k, e.groups, e.imbalance));
  }
  EXPECT_EQ(profile.gemm.size(), 3u * (1 + 2 + 2 * 2));
  EXPECT_EQ(seen.size(), profile.gemm.size());
  for (const char* one :
       {"plain forward 6 4 10 1 1", "plain grad_input 6 10 4 1 1", "plain grad_weight 4 10 6 1 1", "batched grad_input 6 10 4 3 1",
        "batched grad_weight 10 4 6 2 1", "grouped forward 6 4 10 3 2", "grouped grad_weight 4 10 6 2 1"})
    EXPECT_TRUE(seen.contains(one)) << one;
}

TEST(GemmSweep, flags_choose_the_kinds_that_they_are_of) {
  const auto kinds = [](const GemmSweep& sweep) {
    std::set<std::string> all;
    for (const auto& e : measured(measurements_of(sweep, kSetting)).gemm) all.insert(e.kind);
    return all;
  };
  const std::vector<int64_t> few = {8};
  EXPECT_THAT(kinds({.m = few, .n = few, .k = few, .kinds = {}, .passes = {}, .groups = {}, .imbalance = {}}), ElementsAre("plain"));
  EXPECT_THAT(kinds({.m = few, .n = few, .k = few, .kinds = {}, .passes = {}, .groups = {2}, .imbalance = {}}),
              ElementsAre("batched", "grouped"));
  EXPECT_THAT(kinds({.m = few, .n = few, .k = few, .kinds = {}, .passes = {}, .groups = {}, .imbalance = {2}}), ElementsAre("grouped"));
}

TEST(GemmSweep, what_is_wrong_is_named_with_the_nearest_that_is_right) {
  EXPECT_THAT(error_of(GemmSweep{.m = {}, .n = {}, .k = {}, .kinds = {"grupped"}, .passes = {}, .groups = {}, .imbalance = {}}),
              HasSubstr("did you mean 'grouped'"));
  EXPECT_THAT(error_of(GemmSweep{.m = {}, .n = {}, .k = {}, .kinds = {}, .passes = {"grad_inputs"}, .groups = {}, .imbalance = {}}),
              HasSubstr("did you mean 'grad_input'"));
  EXPECT_THAT(error_of(GemmSweep{.m = {}, .n = {}, .k = {}, .kinds = {}, .passes = {}, .groups = {4}, .imbalance = {9}}),
              HasSubstr("the nearest is 4"));
  EXPECT_THAT(error_of(GemmSweep{.m = {}, .n = {}, .k = {}, .kinds = {"plain"}, .passes = {}, .groups = {4}, .imbalance = {}}),
              HasSubstr("--groups is of batched"));
  EXPECT_THAT(error_of(GemmSweep{.m = {int64_t{1} << 40}, .n = {}, .k = {}, .kinds = {}, .passes = {}, .groups = {}, .imbalance = {}}),
              HasSubstr("smaller --m"));
  const std::vector<int64_t> many(1000, 8);
  EXPECT_THAT(error_of(GemmSweep{.m = many, .n = many, .k = many, .kinds = {}, .passes = {}, .groups = {}, .imbalance = {}}),
              HasSubstr("give fewer"));
}

TEST(AttentionSweep, every_shape_that_is_one) {
  const AttentionSweep sweep{
      .seq = {16, 40}, .heads = {4, 6}, .kv_heads = {2, 4}, .head_dims = {16}, .windows = {0, 16}, .batches = {1, 2}};
  const auto profile = measured(measurements_of(sweep, kSetting));
  // 4/2, 4/4 and 6/2 heads; 16 and 40 without a window, 40 with one of 16.
  EXPECT_EQ(profile.attention.size(), 3u * 3 * 2);
  for (const auto& e : profile.attention) {
    EXPECT_EQ(e.heads % e.kv_heads, 0);
    EXPECT_TRUE(e.window == 0 || e.window < e.seq);
    EXPECT_GT(e.forward_s, 0);
    EXPECT_GT(e.backward_s, 0);
  }
  EXPECT_EQ(
      measured(measurements_of(AttentionSweep{.seq = {16}, .heads = {6}, .kv_heads = {}, .head_dims = {16}, .windows = {}, .batches = {}},
                               kSetting))
          .attention[0]
          .kv_heads,
      6);
}

TEST(AttentionSweep, what_is_wrong_is_named_with_the_nearest_that_is_right) {
  EXPECT_THAT(error_of(AttentionSweep{.seq = {}, .heads = {8}, .kv_heads = {3}, .head_dims = {}, .windows = {}, .batches = {}}),
              HasSubstr("the nearest that does is 2"));
  EXPECT_THAT(error_of(AttentionSweep{.seq = {64}, .heads = {}, .kv_heads = {}, .head_dims = {}, .windows = {64}, .batches = {}}),
              HasSubstr("the nearest is 63"));
  EXPECT_THAT(
      error_of(AttentionSweep{.seq = {int64_t{1} << 44}, .heads = {}, .kv_heads = {}, .head_dims = {}, .windows = {}, .batches = {}}),
      HasSubstr("smaller --seq"));
}

// A window leaves less to do: its time tells whether the kernel got it.
TEST(AttentionSweep, windows_save_time) {
  const Repeats few{1, 5, 5, 0, 5};
  const auto whole = measure_attention("fp32", 1, 2048, 2, 2, 64, few, at::kCPU),
             narrow = measure_attention("fp32", 1, 2048, 2, 2, 64, few, at::kCPU, 64);
  EXPECT_LT(narrow.forward_s, 0.6 * whole.forward_s);
  EXPECT_LT(narrow.backward_s, 0.6 * whole.backward_s);
}

TEST(MemorySweep, reads_and_writes_beside_the_streams_and_no_copies_to_a_device_that_is_not_there) {
  std::set<std::string> operations;
  for (const auto& e : measured(memory_measurements({4096, 8192}, kSetting)).memory) operations.insert(e.operation);
  EXPECT_THAT(operations, ElementsAre("add", "copy", "dot", "read", "scale", "triad", "write"));
  EXPECT_THROW(memory_measurements({int64_t{1} << 45}, kSetting), base::UsageError);
  EXPECT_THROW(measure_transfer("host_to_device_pinned", 4096, kOnce, at::kCPU), base::UsageError);
}

TEST(LibraryRace, every_library_has_each_product_and_the_choice_is_put_back) {
  kernels::use_gemm_backend(kernels::GemmBackend::standard);
  const auto libraries = kernels::gemm_backends(at::kFloat, at::kCPU);
  const auto rates = race_libraries("fp32", plan::Pass::grad_input, 8, 16, 24, 5, at::kCPU);
  EXPECT_EQ(rates.size(), libraries.size() < 2 ? 0 : libraries.size());
  for (const auto& e : rates) {
    EXPECT_LE(e.low_flops_per_s, e.flops_per_s);
    EXPECT_LE(e.flops_per_s, e.high_flops_per_s);
    EXPECT_EQ(e.pass, "grad_input");
  }
  EXPECT_EQ(kernels::gemm_backend(), kernels::GemmBackend::standard);
  const GemmSweep sweep{.m = {8}, .n = {8, 16}, .k = {8}, .kinds = {}, .passes = {}, .groups = {}, .imbalance = {}};
  const auto profile = measured(library_measurements(sweep, true, kSetting));
  EXPECT_EQ(profile.libraries.size(), 2 * 3 * rates.size());
  EXPECT_TRUE(profile.gemm.empty());
}

TEST(LibraryRace, a_new_profile_keeps_what_only_the_old_one_has) {
  plan::MachineProfile old, fresh;
  old.libraries = {{"fp32", "onednn", "forward", 1, 1, 1, 1, 1, 1}};
  old.memory = {{"triad", 1, 1}};
  EXPECT_EQ(replaced_by(fresh, old).libraries.size(), 1u);
  EXPECT_TRUE(replaced_by(fresh, old).memory.empty());
  fresh.libraries = {{"bf16", "default", "forward", 1, 1, 1, 1, 1, 1}};
  EXPECT_EQ(replaced_by(fresh, old).libraries[0].dtype, "bf16");
}

TEST(Tables, say_which_library_wins_and_by_how_much) {
  plan::MachineProfile p;
  for (const auto& [library, flops] : {std::pair{"default", 1e11}, std::pair{"onednn", 1.25e11}})
    p.libraries.push_back({"fp32", library, "forward", 64, 32, 16, flops, 0.99 * flops, 1.01 * flops});
  const auto text = tables(p);
  EXPECT_THAT(text, HasSubstr("onednn 125.0 (123.8-126.2)  onednn +25 %"));
  EXPECT_THAT(text, HasSubstr("fp32 over all of these: onednn takes 80.0 % of the default's time"));
  EXPECT_THAT(text, HasSubstr("fp32: onednn is clearly faster"));
  p.libraries.back().low_flops_per_s = 0.9e11;
  EXPECT_THAT(tables(p), HasSubstr("no other library is clearly faster"));
}

plan::MachineProfile balanced() {
  plan::MachineProfile p;
  p.gemm = {{"fp32", "plain", "forward", 64, 64, 64, 1e11}, {"fp32", "grouped", "forward", 64, 64, 64, 5e10, 8, 2}};
  p.memory = {{"triad", 1 << 28, 1e10}};
  p.attention = {
      {"fp32", 1, 16, 8, 8, 64, 1e-3, 2e-3}, {"fp32", 1, 4096, 8, 8, 64, 1e-3, 2e-3}, {"fp32", 1, 4096, 8, 8, 64, 1e-3, 2e-3, 32}};
  return p;
}

TEST(Tables, say_what_bounds_attention_and_where_that_turns) {
  const auto text = tables(balanced());
  EXPECT_THAT(text, HasSubstr("100.0 GFLOP/s of GEMMs over 10.0 GB/s of memory = 10.0 FLOPs per byte"));
  // Of 8/8 heads in fp32 intensity is (seq + 1) / 8.
  EXPECT_THAT(text, HasSubstr("fp32 with 8/8 heads turns compute-bound at sequence length ≈ 79\n"));
  EXPECT_THAT(text, HasSubstr("fp32 with 8/8 heads and a window of 32 stays memory-bound at any sequence length\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("fp32 +1 +16 +8/8 +64 +- .* 2.1  memory\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("fp32 +1 +4096 +8/8 +64 +- .* 512.1  compute\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("fp32 +grouped +forward +8 +2 +64 +64 +64 +50.0 +50 %"));
  auto unknown = balanced();
  unknown.memory.clear();
  EXPECT_THAT(tables(unknown), ::testing::Not(HasSubstr("FLOPs per byte")));
  EXPECT_TRUE(balance_json(unknown).empty());
}

TEST(BalanceJson, has_each_measurements_bound_and_each_shapes_turn) {
  const auto json = balance_json(balanced());
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0]["flops_per_byte"], 10);
  EXPECT_DOUBLE_EQ(json[0]["turns"][0]["seq"].get<double>(), 79);
  EXPECT_TRUE(json[0]["turns"][1]["seq"].is_null());
  EXPECT_EQ(json[0]["attention"][0]["bound"], "memory");
  EXPECT_EQ(json[0]["attention"][1]["bound"], "compute");
  EXPECT_EQ(json[0]["attention"][2]["bound"], "memory");
}

}  // namespace
}  // namespace ingot::bench
