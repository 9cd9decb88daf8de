// Collectives of real ranks give what they must and are timed; the arithmetic around them is nccl-tests'.
#include "bench/collectives.h"

#include <gmock/gmock.h>

#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "comm/test_ranks.h"
#include "device/tracer.h"
#include "device/virtual_device.h"

namespace ingot::bench {
namespace {

using testing::HasSubstr;

CollectiveSweep small_sweep() {
  CollectiveSweep sweep;
  sweep.collectives = all_collectives();
  sweep.dtypes = {"fp32", "bf16"};
  sweep.min_bytes = 4;
  sweep.max_bytes = 100'000;  // which is no whole number of elements for every group
  sweep.step_factor = 7;
  sweep.iterations = 3;
  sweep.warmup = 1;
  return sweep;
}

const OnCollective kAll = [](size_t, size_t, const std::string&) { return true; };

class EveryFabric : public testing::TestWithParam<comm::Fabrics> {};

TEST_P(EveryFabric, gives_exact_results_in_groups_of_every_size_and_placement) {
  comm::run_on(GetParam(), 4, [](comm::World& world) {
    auto sweep = small_sweep();
    if (GetParam() == comm::Fabrics::gloo) sweep.dtypes = {"bf16"};  // whose small messages take milliseconds on two cores
    sweep.root = 1;
    const auto results = measure_collectives(sweep, world, at::kCPU, kAll);
    std::set<std::tuple<int, std::string>> groups;
    for (const auto& r : results) {
      const auto what = fmt::format("{} {} of {}, {}, {} bytes", name_of(r.collective), r.dtype, r.ranks, name_of(r.placement), r.bytes);
      groups.insert({r.ranks, name_of(r.placement)});
      comm::require(r.groups * r.ranks == 4, "{}: {} groups", what, r.groups);
      for (const auto& t : {r.out_of_place, r.in_place}) {
        if (!t) continue;
        comm::require(t->wrong == 0, "{}: {} wrong", what, t->wrong);
        comm::require(0 < t->min_s && t->min_s <= t->p50_s && t->p50_s <= t->p99_s && t->p99_s <= t->max_s, "{}: {} {} {}", what, t->min_s,
                      t->p50_s, t->max_s);
        comm::require(t->min_s <= t->mean_s && t->mean_s <= t->max_s, "{}: mean {}", what, t->mean_s);
      }
    }
    const std::set<std::tuple<int, std::string>> expected = {{2, "neighbours"}, {2, "strided"}, {4, "neighbours"}};
    comm::require(groups == expected, "{} kinds of groups", groups.size());
    // A size that has no element for each rank is the next one: at most one falls away.
    const size_t all = 3 * sweep.dtypes.size() * 7 * sweep.sizes().size();
    comm::require(results.size() <= all && results.size() > all / 2, "{} results", results.size());
    for (size_t i = 1; i < results.size(); ++i)
      if (results[i].collective == results[i - 1].collective && results[i].dtype == results[i - 1].dtype &&
          results[i].placement == results[i - 1].placement && results[i].ranks == results[i - 1].ranks)
        comm::require(results[i].bytes > results[i - 1].bytes, "{} and then {} bytes", results[i - 1].bytes, results[i].bytes);
  });
}

INSTANTIATE_TEST_SUITE_P(Collectives, EveryFabric,
                         testing::Values(comm::Fabrics::threads, comm::Fabrics::shared_memory, comm::Fabrics::gloo),
                         [](const auto& info) { return comm::name_of(info.param); });

// Buffers of the host would go by the host's transport, and the times would be its.
TEST(Collectives, are_measured_between_devices) {
  comm::run_on(comm::Fabrics::threads, 2, [](comm::World& world) {
    auto sweep = small_sweep();
    sweep.max_bytes = 4096;
    const auto device = device::emulated_device(world.rank());
    std::optional<device::Tracer> tracer(device);
    const auto results = measure_collectives(sweep, world, device, kAll);
    const auto trace = tracer->finish();
    int64_t copied = 0, used = 0;
    for (const auto& access : trace.host_accesses) copied += access.bytes;
    for (const auto& r : results)
      for (const auto& t : {r.out_of_place, r.in_place}) {
        if (!t) continue;
        used += r.bytes;
        comm::require(t->wrong == 0, "{} of {} bytes: {} wrong", name_of(r.collective), r.bytes, t->wrong);
        comm::require(0 < t->min_s && t->min_s <= t->p50_s && t->p50_s <= t->p99_s && t->p99_s <= t->max_s && t->mean_s > 0, "times");
      }
    comm::require(copied >= used, "{} bytes went to the device, of {}", copied, used);
  });
}

TEST(Collectives, stop_on_every_rank_when_one_wants_to) {
  comm::run_on(comm::Fabrics::threads, 3, [](comm::World& world) {
    auto sweep = small_sweep();
    sweep.collectives = {Collective::all_reduce};
    const auto results =
        measure_collectives(sweep, world, at::kCPU, [&](size_t done, size_t, const std::string&) { return world.rank() != 2 || done < 3; });
    comm::require(results.size() == 3, "{} results", results.size());
  });
}

// facts: nccl-tests' table of sizes and factors.
TEST(Collectives, count_bandwidth_as_nccl_tests_does) {
  const auto factor = [](Collective c) { return bus_factor(c, 8); };
  EXPECT_DOUBLE_EQ(factor(Collective::all_reduce), 14.0 / 8);
  for (const auto c : {Collective::all_gather, Collective::reduce_scatter, Collective::all_to_all}) EXPECT_DOUBLE_EQ(factor(c), 7.0 / 8);
  for (const auto c : {Collective::broadcast, Collective::reduce, Collective::send_receive}) EXPECT_DOUBLE_EQ(factor(c), 1);
  // 1,000,000 bytes in 100 us: 10 GB/s, and 17.5 on each link of a ring of 8.
  CollectiveResult r{Collective::all_reduce,
                     "fp32",
                     Placement::neighbours,
                     8,
                     1,
                     -1,
                     1'000'000,
                     250'000,
                     {},
                     CollectiveTiming{1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 0}};
  EXPECT_DOUBLE_EQ(r.algorithm_bandwidth(r.timing()), 1e10);
  EXPECT_DOUBLE_EQ(r.bus_bandwidth(r.timing()), 1.75e10);
}

TEST(Collectives, place_every_rank_in_one_group) {
  EXPECT_EQ(members_of(Placement::neighbours, 8, 2, 5), (std::vector{4, 5}));
  EXPECT_EQ(members_of(Placement::strided, 8, 2, 5), (std::vector{1, 5}));
  EXPECT_EQ(members_of(Placement::strided, 8, 4, 5), (std::vector{1, 3, 5, 7}));
  for (const auto placement : {Placement::neighbours, Placement::strided})
    for (const int ranks : {2, 3, 4, 6, 12})
      for (int rank = 0; rank < 12; ++rank) {
        const auto members = members_of(placement, 12, ranks, rank);
        EXPECT_TRUE(std::find(members.begin(), members.end(), rank) != members.end());
        for (const int other : members) EXPECT_EQ(members_of(placement, 12, ranks, other), members);
      }
}

std::vector<CollectiveResult> made_by(double latency_s, double bytes_per_s) {
  std::vector<CollectiveResult> results;
  for (int64_t bytes = 8; bytes <= int64_t{1} << 30; bytes *= 2) {
    const double t = latency_s + static_cast<double>(bytes) / bytes_per_s;
    results.push_back(
        {Collective::all_reduce, "fp32", Placement::neighbours, 4, 1, -1, bytes, bytes / 4, {}, CollectiveTiming{t, t, t, t, t, 0}});
  }
  return results;
}

TEST(Collectives, fit_latency_and_bandwidth_and_find_the_knee) {
  const auto curves = curves_of(made_by(20e-6, 5e9));
  ASSERT_EQ(curves.size(), 1);
  EXPECT_NEAR(curves[0].latency_s, 20e-6, 1e-12);
  EXPECT_NEAR(curves[0].bytes_per_s, 5e9, 1);
  EXPECT_LT(curves[0].largest_error, 1e-9);
  // 90 % of the bandwidth from 9 latencies' worth of bytes on: 900,000, so 1 MiB.
  EXPECT_EQ(curves[0].knee_bytes, 1 << 20);
  // Without a latency, and of a single size.
  EXPECT_NEAR(curves_of(made_by(0, 2e9))[0].bytes_per_s, 2e9, 1);
  auto one = made_by(20e-6, 5e9);
  one.resize(1);
  EXPECT_LT(curves_of(one)[0].largest_error, 1e-9);
}

TEST(Collectives, come_back_from_json_and_show_in_nccl_tests_columns) {
  auto results = made_by(20e-6, 5e9);
  results[1].in_place->wrong = 3;
  results[2].out_of_place = results[2].in_place;
  const auto back = collectives_from_json(nlohmann::json::parse(to_json(results).dump()));
  EXPECT_EQ(to_json(back), to_json(results));
  EXPECT_EQ(wrong_elements(back), 3);
  const auto table = to_table(results, "4 ranks", true);
  EXPECT_THAT(table, HasSubstr("size         count      type  redop  root"));
  EXPECT_THAT(table, HasSubstr("time   algbw   busbw #wrong"));
  EXPECT_THAT(table, HasSubstr("# Out of bounds values : 3 FAILED"));
  EXPECT_THAT(table, HasSubstr("time = 20.0 us + bytes / 5.00 GB/s"));
  EXPECT_THAT(to_table(made_by(20e-6, 5e9), "4 ranks", false), HasSubstr("# Out of bounds values : 0 OK"));
}

TEST(Collectives, refuse_what_cannot_be_measured) {
  const auto refusal = [](const std::function<void(CollectiveSweep&)>& spoil, int world = 4) -> std::string {
    auto sweep = small_sweep();
    spoil(sweep);
    try {
      sweep.check(world);
    } catch (const base::UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_THAT(refusal([](auto&) {}, 1), HasSubstr("at least 2 ranks"));
  EXPECT_THAT(refusal([](auto& s) { s.step_factor = 1; }), HasSubstr("-f 2"));
  EXPECT_THAT(refusal([](auto& s) { s.step_factor = std::nan(""); }), HasSubstr("-f 2"));
  EXPECT_THAT(refusal([](auto& s) { s.max_bytes = 1; }), HasSubstr("sizes from 4 to 1"));
  EXPECT_THAT(refusal([](auto& s) { s.group_sizes = {3}; }), HasSubstr("groups of 3"));
  EXPECT_THAT(refusal([](auto& s) { s.root = 2; }), HasSubstr("-r 2"));
  EXPECT_THROW(collective_from_name("allreduce"), base::UsageError);
}

}  // namespace
}  // namespace ingot::bench
