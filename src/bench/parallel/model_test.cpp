#include "bench/parallel/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace ingot::bench {
namespace {

using namespace schedule;  // NOLINT(google-build-using-namespace): its names make up the sweeps

using ::testing::HasSubstr;

const Cluster& mi300x() {
  static const auto cluster = read_cluster("configs/clusters/mi300x-8.json");
  return cluster;
}

Layout block(Method method, int64_t seq, Pass pass = Pass::forward) {
  return {.method = method, .layer = Layer::block, .pass = pass, .sizes = {.seq = seq}, .ranks = 8};
}

int64_t bytes_of(const Layout& layout) { return received_bytes(traffic_of(trace_layer(layout, device::Target::gpu).program)); }

// Megabytes received per layer at h = 4096, 8 ranks, bf16, one sequence: TSP, TP, SP (arXiv 2604.26294; counted by hand).
TEST(Model, bytes_of_the_papers_model_are_those_of_the_fact_sheet) {
  for (const auto& [seq, tsp, tp, sp] : {std::tuple{8192, 587, 235, 117}, {65536, 1409, 1879, 940}, {131072, 2349, 3758, 1879}}) {
    EXPECT_NEAR(static_cast<double>(bytes_of(block(Method::tsp, seq))) / 1e6, tsp, 0.5);
    EXPECT_NEAR(static_cast<double>(bytes_of(block(Method::tp, seq))) / 1e6, tp, 0.5);
    EXPECT_NEAR(static_cast<double>(bytes_of(block(Method::sp, seq))) / 1e6, sp, 0.5);
  }
}

struct Shape {
  int64_t hidden, heads, group, expansion;
};

Layout of_shape(const Shape& shape, Method method, Pass pass) {
  return {.method = method,
          .layer = Layer::block,
          .pass = pass,
          .sizes = {.hidden = shape.hidden,
                    .heads = shape.heads,
                    .kv_heads = shape.heads / shape.group,
                    .head_dim = shape.hidden / shape.heads,
                    .ffn = shape.expansion * shape.hidden,
                    .batch = 1,
                    .dtype = "fp32"},
          .ranks = 4};
}

std::optional<int64_t> bytes_crossing(const Shape& shape, Pass pass) {
  const auto measure = [&](Method method) {
    return [layout = of_shape(shape, method, pass)](int64_t seq) mutable {
      layout.sizes.seq = seq;
      return static_cast<double>(bytes_of(layout));
    };
  };
  return first_below(measure(Method::tsp), measure(Method::tp), 8, int64_t{1} << 24, 8);
}

// BS > h (2 + 2/g + 3F) / (4 - 2/g): the next multiple of 8 after it.
TEST(Crossover, tsp_receives_less_than_tp_exactly_above_the_bound) {
  for (const Shape& s : {Shape{64, 8, 1, 4}, {128, 16, 1, 3}, {512, 32, 4, 4}, {4096, 32, 1, 4}, {4096, 32, 8, 2}, {96, 12, 3, 5}}) {
    const auto g = static_cast<double>(s.group);
    const double bound = static_cast<double>(s.hidden) * (2 + 2 / g + 3 * static_cast<double>(s.expansion)) / (4 - 2 / g);
    EXPECT_EQ(bytes_crossing(s, Pass::forward), static_cast<int64_t>(std::floor(bound / 8)) * 8 + 8)
        << s.hidden << " " << s.group << " " << s.expansion;
  }
  EXPECT_EQ(bytes_crossing({4096, 32, 1, 4}, Pass::forward), 8 * 4096 + 8);
}

// 3 P + 3 x 2 B S h < 8 B S h with P = 16 h^2.
TEST(Crossover, in_training_it_is_three_times_as_far) { EXPECT_EQ(bytes_crossing({64, 8, 1, 4}, Pass::both), 24 * 64 + 8); }

TEST(Model, a_result_has_what_the_bench_reports) {
  const auto layout = block(Method::tsp, 16384, Pass::both);
  const auto result = model(layout, mi300x());
  EXPECT_EQ(result.method, "tsp");
  EXPECT_EQ(result.pass, "both");
  EXPECT_GT(result.time_ms, result.exposed_ms);
  EXPECT_EQ(result.ops.at("broadcast").calls, 16);
  const auto json = nlohmann::json::parse(to_json({.results = {result}, .refusals = {}, .crossovers = {}}, "modelled", mi300x().name));
  const auto& row = json.at("results").at(0);
  for (const auto* name : {"method", "layer", "ranks", "seq", "batch", "pass", "time_ms", "exposed_ms", "peak_bytes", "ops"})
    EXPECT_TRUE(row.contains(name)) << name;
  EXPECT_EQ(row.at("ops").size(), 7u);
  EXPECT_EQ(row.at("ops").at("all_to_all").at("calls"), 0);
  EXPECT_EQ(row.at("ops").at("broadcast").at("received_bytes"), result.ops.at("broadcast").received_bytes);
}

TEST(Model, a_layout_that_does_not_fit_is_marked) {
  auto cluster = mi300x();
  cluster.memory_bytes = 1e9;
  const auto small = model(block(Method::tsp, 8192), cluster), large = model(block(Method::tp, 131072), cluster);
  EXPECT_TRUE(small.fits);
  EXPECT_FALSE(large.fits);
  EXPECT_THAT(to_table({.results = {small, large}, .refusals = {}, .crossovers = {}}), HasSubstr("more than the memory of a device"));
}

TEST(Model, more_ranks_than_devices_are_refused) {
  auto layout = block(Method::tp, 8192);
  layout.ranks = 16;
  try {
    model(layout, mi300x());
    FAIL();
  } catch (const base::ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tp over 16 ranks: '8 x MI300X: one node, Infinity Fabric' has 8 devices"));
  }
}

TEST(Sweep, every_method_and_factorisation_is_there_or_refused_with_a_reason) {
  const Sweep sweep{.methods = {Method::tp, Method::tp_sp, Method::tsp, Method::lasp2, Method::ring},
                    .ranks = {8},
                    .seqs = {8192, 8200},
                    .base = {.layer = Layer::attention}};
  const auto out = model(sweep, mi300x());
  std::vector<std::string> methods;
  for (const auto& result : out.results)
    if (result.seq == 8192 && result.pass == "forward") methods.push_back(result.method);
  EXPECT_THAT(methods, ::testing::ElementsAre("tp", "tp2+sp4", "tp4+sp2", "tsp", "ring"));
  EXPECT_THAT(out.refusals,
              ::testing::Contains(::testing::Field(&Refusal::reason, HasSubstr("lasp2 has no schedule for softmax attention"))));
  EXPECT_THAT(out.refusals, ::testing::Contains(::testing::Field(&Refusal::reason, HasSubstr("seq = 8200 is not a multiple of 16"))));
  EXPECT_THAT(to_table(out), HasSubstr("left out: lasp2 has no schedule"));
}

TEST(Sweep, crossovers_lie_where_the_order_turns_round) {
  const Sweep sweep{.methods = {Method::tp, Method::tsp}, .ranks = {8}, .seqs = {8192, 131072}, .passes = {Pass::forward}, .base = {}};
  const auto out = model(sweep, mi300x());
  for (const auto& c : out.crossovers) {
    const auto needs = [&](Method method, int64_t seq) {
      const auto result = model(block(method, seq), mi300x());
      return c.quantity == Quantity::time         ? result.time_ms
             : c.quantity == Quantity::peak_bytes ? static_cast<double>(result.peak_bytes)
                                                  : static_cast<double>(received_bytes(result.ops));
    };
    EXPECT_LT(needs(method_from_name(c.lower), c.seq), needs(method_from_name(c.higher), c.seq)) << name_of(c.quantity);
    EXPECT_GE(needs(method_from_name(c.lower), c.seq - 64), needs(method_from_name(c.higher), c.seq - 64)) << name_of(c.quantity);
  }
  EXPECT_THAT(out.crossovers, ::testing::Contains(::testing::AllOf(::testing::Field(&Crossover::quantity, Quantity::received_bytes),
                                                                   ::testing::Field(&Crossover::seq, 32768 + 64))));
}

TEST(Sweep, nothing_to_model_is_an_error) {
  EXPECT_THROW(model(Sweep{.methods = {}, .ranks = {8}, .seqs = {8192}, .base = {}}, mi300x()), base::ConfigError);
  EXPECT_THROW(model(Sweep{.methods = {Method::tp}, .ranks = {5}, .seqs = {8192}, .base = {}}, mi300x()), base::ConfigError);
  EXPECT_THROW(model(Sweep{.methods = {Method::tp}, .ranks = {8}, .seqs = {8192}, .base = {.sizes = {.dtype = "fp64"}}}, mi300x()),
               base::ProfileError);
}

}  // namespace
}  // namespace ingot::bench
