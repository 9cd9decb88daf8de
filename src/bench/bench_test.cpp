#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/process.h"
#include "bench/kernels.h"
#include "bench/operations.h"
#include "bench/suite.h"
#include "comm/world.h"
#include "device/tracer.h"
#include "device/virtual_device.h"
#include "layers/linear_attention.h"
#include "models/model.h"
#include "optim/operators.h"
#include "plan/trace/step_trace.h"

namespace ingot::bench {
namespace {

const Repeats kOnce{0, 1, 1, 0, 0};

base::ProgressBar silent_bar() {
  return base::ProgressBar("test", 0, base::ProgressUnit::count, {[](std::string_view) {}, [] { return 0.0; }, false, 80, 1e9});
}

TEST(Median, of_odd_and_even_counts_is_the_middle) {
  EXPECT_EQ(median({3, 1, 100}), 3);
  EXPECT_EQ(median({1, 100, 4, 2}), 3);
}

TEST(GroupedGemms, are_one_call_where_a_step_has_one) {
  const auto gpu = device::emulated_device(0);
  const auto gemms = [gpu](const std::string& dtype, plan::Pass pass, int64_t m, int64_t n) {
    device::Tracer tracer(gpu);
    EXPECT_GT(measure_grouped(dtype, pass, m, n, 16, 4, 2, kOnce, gpu).flops_per_s, 0);
    const auto trace = tracer.finish();
    std::set<std::string> names;
    for (const auto& operation : trace.operations)
      if (operation.flops > 0) names.emplace(trace.name_of(operation));
    return names;
  };
  using Names = std::set<std::string>;
  for (const auto pass : {plan::Pass::forward, plan::Pass::grad_input}) EXPECT_EQ(gemms("bf16", pass, 11, 24), Names{"grouped_gemm"});
  EXPECT_EQ(gemms("bf16", plan::Pass::grad_weight, 8, 24), Names{"grouped_gemm.gradient"});
  for (const auto& names : {gemms("bf16", plan::Pass::forward, 11, 20), gemms("fp32", plan::Pass::forward, 11, 24),
                            gemms("bf16", plan::Pass::grad_weight, 12, 24)})
    EXPECT_FALSE(names.contains("grouped_gemm") || names.contains("grouped_gemm.gradient"));
}

TEST(MedianSeconds, warms_up_and_repeats_as_often_as_asked) {
  int calls = 0;
  median_seconds([&] { ++calls; }, {2, 3, 5, 0, 0}, at::kCPU);
  EXPECT_EQ(calls, 2 + 3);
}

TEST(Samples, waiting_for_a_core_does_not_count) {
  // Threads of this process that fight for the cores, as other programs would.
  std::atomic<bool> busy = false, stop = false;
  std::vector<std::thread> rivals;
  for (int i = 0; i < 4 * base::usable_cores(); ++i)
    rivals.emplace_back([&] {
      while (!stop)
        if (!busy) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  const auto spin = [] {
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(3)) {
    }
  };
  Samples samples;
  for (int i = 0; i < 60 && !samples.enough({0, 3, 3, 0, 1e9}); ++i) {
    busy = i % 2 == 0;
    samples.add(
        [&] {
          spin();
          if (busy) std::this_thread::sleep_for(std::chrono::milliseconds(30));  // what a disturbance does to the time
        },
        at::kCPU);
  }
  stop = true;
  for (auto& rival : rivals) rival.join();
  EXPECT_LT(samples.result(), 0.030);
}

TEST(Measurements, of_each_kind_are_positive_and_keep_their_sizes) {
  for (const char* dtype : {"fp32", "bf16"}) {
    for (const auto pass : {plan::Pass::forward, plan::Pass::grad_input, plan::Pass::grad_weight}) {
      const auto gemm = measure_gemm(dtype, pass, 24, 40, 16, kOnce, at::kCPU);
      EXPECT_GT(gemm.flops_per_s, 0);
      EXPECT_EQ((std::array{gemm.m, gemm.n, gemm.k}), (std::array<int64_t, 3>{24, 40, 16}));
      EXPECT_EQ(gemm.pass, plan::name_of(pass));
    }
    const auto attention = measure_attention(dtype, 1, 48, 4, 2, 16, kOnce, at::kCPU);
    EXPECT_GT(attention.forward_s, 0);
    EXPECT_GT(attention.backward_s, 0);
  }
  EXPECT_GT(measure_operation(kOnce, at::kCPU), 0);
}

TEST(Measurements, memory_counts_every_array_that_moves) {
  // The same array from the same cache: what differs is how many arrays an operation touches, not the rate by much.
  for (const auto& operation : memory_operations()) {
    const auto rate = measure_memory(operation, 1 << 16, {2, 9, 9, 0, 0.2}, at::kCPU);
    EXPECT_GT(rate.bytes_per_s, 1e5) << operation;  // however busy the machine is
    EXPECT_EQ(rate.bytes, 1 << 16);
  }
  EXPECT_THROW(measure_memory("swap", 1024, kOnce, at::kCPU), base::UsageError);
}

TEST(Kernels, all_cases_run_forward_and_backward_in_both_dtypes) {
  for (const auto& op : optim::operators()) {
    const std::string name(op.name);
    for (const char* dtype : {"fp32", "bf16"}) {
      const auto time = measure_kernel(name, dtype, 40, 256, kOnce, at::kCPU);
      EXPECT_GT(time.forward_bytes, 0) << name;
      EXPECT_EQ(time.backward_bytes > 0, time.backward_s > 0) << name;
      EXPECT_GT(time.forward_s, 0) << name;
      const bool has_backward = name != "cross_entropy" && name != "round_to_fp8" && name != "adamw" && name != "muon";
      EXPECT_EQ(time.backward_s > 0, has_backward) << name;
    }
  }
  EXPECT_THROW(measure_kernel("rms_nrm", "fp32", 4, 4, kOnce, at::kCPU), base::UsageError);
}

// One whose traced kernel nobody knows would be predicted from its bytes alone, and count as additions and copies.
TEST(Kernels, every_kernel_in_a_traced_step_belongs_to_an_operator) {
  const auto& all = optim::operators();
  std::set<std::string> measured;
  for (const auto& family : models::families())
    for (const auto& variant : layers::linear_variant_names()) {
      train::RunConfig config;
      auto sizes = models::small_sizes();
      sizes.layers = 2, sizes.hidden = 64, sizes.head_dim = 16, sizes.ffn = 128, sizes.expert_ffn = 16;
      auto& c = config.model = models::small_model(family.name, sizes);
      c.linear_attention = variant, c.feature_map = variant.ends_with("delta") || variant == "kda" ? "l2" : "silu", c.layer_pattern = "LN";
      config.optimizer.name = "muon";
      config.train.precision = "bf16", config.train.batch_size = 2, config.train.steps = 2;
      config.data.seq_len = 32;
      const auto trace = plan::trace_step({.config = config, .target = device::Target::cpu}).trace;
      for (const auto& operation : trace.operations) {
        const auto name = trace.name_of(operation);
        if (name.starts_with("aten::")) continue;
        EXPECT_NE(kernels::operator_of_kernel(all, name), nullptr) << family.name << ", " << name;
        const auto size = kernels::measured_size(all, name, trace.inputs_of(operation), trace.outputs_of(operation));
        if (!size) continue;
        measured.insert(std::string(size->name) + (size->is_backward ? ".backward" : ""));
        EXPECT_GT(size->rows * size->width, 0) << name;
      }
    }
  for (const char* name : {"rms_norm", "join_norm.backward", "swiglu", "split_and_rotate", "cca_mix.backward", "linear_attention_delta",
                           "short_convolution.backward", "cross_entropy", "adamw"})
    EXPECT_TRUE(measured.contains(name)) << name;
}

TEST(Suite, stopping_keeps_what_was_measured) {
  plan::MachineProfile profile;
  std::vector<Measurement> three(3, {"one", [](plan::MachineProfile& p) { p.memory.push_back({"copy", 1, 1}); }});
  auto bar = silent_bar();
  int asked = 0;
  EXPECT_FALSE(run_suite(three, profile, bar, [&] { return asked++ == 2; }));
  EXPECT_EQ(profile.memory.size(), 2u);
  EXPECT_TRUE(run_suite(three, profile, bar, [] { return false; }));
  EXPECT_EQ(profile.memory.size(), 5u);
}

// Ranks as threads; each computes with one of torch's.
TEST(Suite, ranks_measure_side_by_side_as_far_as_there_are_cores) {
  const int ranks = base::usable_cores() + 1;
  std::atomic<int> at_work = 0, most = 0, calls = 0;
  std::vector<plan::MachineProfile> profiles(static_cast<size_t>(ranks));
  comm::run_ranks(ranks, [&](comm::World& world) {
    const Company company{&world, world.rank(), world.size()};
    EXPECT_EQ(company.side_by_side(), ranks - 1);
    const Measurement measurement{"one", [&](plan::MachineProfile& p) {
                                    const int now = ++at_work;
                                    int seen = most;
                                    while (now > seen && !most.compare_exchange_weak(seen, now)) {
                                    }
                                    std::this_thread::sleep_for(std::chrono::milliseconds(50));
                                    --at_work;
                                    ++calls;
                                    p.memory.push_back({"copy", 1, 1});
                                  }};
    auto bar = silent_bar();
    EXPECT_TRUE(run_suite(
        {measurement, measurement}, profiles[static_cast<size_t>(world.rank())], bar, [] { return false; }, company));
    // One rank that wants to stop stops all.
    int asked = 0;
    EXPECT_FALSE(run_suite(
        {measurement, measurement}, profiles[static_cast<size_t>(world.rank())], bar,
        [&] { return world.rank() == ranks - 1 && asked++ == 1; }, company));
  });
  EXPECT_EQ(calls, 3 * (ranks - 1));
  EXPECT_EQ(most, ranks - 1);
  EXPECT_EQ(profiles.front().memory.size(), 3u);
  EXPECT_TRUE(profiles.back().memory.empty());
}

TEST(Suite, collectives_are_kept_once_for_each_number_of_ranks) {
  comm::run_ranks(2, [](comm::World& world) {
    plan::MachineProfile profile;
    profile.collectives = {{"all_reduce", "fp32", "neighbours", 2, 1, 4, 1}, {"all_reduce", "fp32", "neighbours", 4, 1, 4, 1}};
    EXPECT_FALSE(knows_collectives(profile, 8));
    measure_collectives_of({&world, world.rank(), world.size()}, true, profile);
    std::set<std::string> operations;
    for (const auto& e : profile.collectives) {
      EXPECT_TRUE(e.ranks == 4 || e.bytes > 4) << "an old entry stayed";
      if (e.ranks == 2) operations.insert(e.operation);
    }
    EXPECT_EQ(operations.size(), 7u);
    EXPECT_TRUE(knows_collectives(profile, 2) && knows_collectives(profile, 4));
  });
}

// Regression: runs that began together on an idle machine all measured it, each took the others' cores, and the last one's file was kept.
// Ranks wait for the other run longer than they would for each other.
TEST(Suite, who_waits_for_another_that_measures_reads_what_it_kept) {
  const auto cache = base::temporary_folder() / fmt::format("ingot_turns_{}", ::getpid());
  std::filesystem::create_directories(cache);
  for (const int ranks : {1, 2}) {
    comm::WorldOptions options;
    options.timeout = std::chrono::milliseconds(400);
    comm::run_ranks(
        ranks,
        [&](comm::World& world) {
          const Company company = ranks == 1 ? Company{} : Company{&world, world.rank(), world.size()};
          auto kept = plan::describe_machine(at::get_num_threads(), company.side_by_side(), "cpu");
          const auto path = plan::profile_path(cache, kept);
          kept.gemm.push_back({.dtype = "fp32", .m = 1, .n = 1, .k = 1, .flops_per_s = 1});
          kept.attention.push_back({"fp32", 1, 64, 2, 2, 16, 1, 1});
          kept.kernels.push_back({"rms_norm", "fp32", 64, 64, 1, 1, 1, 64, 64});
          kept.memory.push_back({"copy", 1, 1});
          kept.collectives.push_back({"all_reduce", "fp32", "neighbours", ranks, 1, 4, 1});
          std::atomic<bool> is_back = false;
          std::jthread other;
          if (company.is_first()) {
            auto turn = base::FileLock::try_take(path.string() + ".lock");
            ASSERT_TRUE(turn.has_value());
            other = std::jthread([&, path, kept, turn = std::move(turn)]() mutable {
              std::this_thread::sleep_for(std::chrono::seconds(1));
              EXPECT_FALSE(is_back);
              plan::write_profile(path, kept);
              turn.reset();
            });
          }
          const auto read = profile_for("fp32", "cpu", cache, company);
          is_back = true;
          if (!company.is_first()) return;
          ASSERT_EQ(read.gemm.size(), 1u) << "it measured";
          EXPECT_EQ(read.gemm[0].flops_per_s, 1);
        },
        options);
    std::filesystem::remove_all(cache);
    std::filesystem::create_directories(cache);
  }
  std::filesystem::remove_all(cache);
}

TEST(Suite, asks_for_what_was_chosen_only) {
  const auto labels = [](const SuiteOptions& options) {
    std::set<std::string> first_words;
    for (const auto& m : measurements_of(options)) first_words.insert(m.label.substr(0, m.label.find(' ')));
    return first_words;
  };
  EXPECT_EQ(labels({.gemm = true, .dtypes = {"fp32"}, .quick = true}), (std::set<std::string>{"gemm"}));
  EXPECT_EQ(labels({.memory = true, .quick = true}), (std::set<std::string>{"memory"}));
  EXPECT_EQ(labels({.attention = true, .dtypes = {"bf16"}}), (std::set<std::string>{"attention"}));
}

TEST(Tables, show_rates_beside_the_peak) {
  plan::MachineProfile p;
  p.gemm = {{"fp32", "plain", "forward", 64, 64, 64, 5e10}, {"fp32", "plain", "forward", 512, 512, 512, 1e11}};
  p.memory = {{"triad", 1 << 20, 2.5e10}};
  const auto text = tables(p);
  EXPECT_NE(text.find("50.0      50 %"), std::string::npos) << text;
  EXPECT_NE(text.find("1024      25.0"), std::string::npos) << text;
}

}  // namespace
}  // namespace ingot::bench
