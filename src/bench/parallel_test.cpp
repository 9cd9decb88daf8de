// Messages of every method against the formulas of facts tsp §6 and of the layers' headers, to the byte; memory that falls with the ranks.
#include "bench/parallel.h"

#include <gmock/gmock.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "kernels/cpu_memory.h"

namespace ingot::bench {
namespace {

using ::testing::HasSubstr;

ParallelResult measured(const std::string& method, const std::string& layer, int ranks, const BlockSizes& sizes, const std::string& pass,
                        int64_t seq = 64) {
  ParallelResult result;
  std::mutex mutex;
  comm::run_ranks(ranks, [&](comm::World& world) {
    auto own = measure_parallel({method, layer, ranks, seq, pass}, sizes, 1, world);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) result = std::move(own);
  });
  return result;
}

using Operations = std::map<std::string, comm::AxisTraffic>;

class ParallelTraffic : public ::testing::TestWithParam<int> {
 protected:
  const int ranks = GetParam();
  const BlockSizes sizes{.hidden = 32, .heads = 8, .kv_heads = 4, .head_dim = 4, .ffn = 64, .batch = 2};
  const int64_t e = 4, seq = 64, p = ranks, x = sizes.batch * seq * sizes.hidden;                // elements of all tokens' activations
  const int64_t q = sizes.heads * 4, kv = sizes.kv_heads * 4;                                     // widths
  const int64_t attention = sizes.hidden * (2 * q + 2 * kv), mlp = 3 * sizes.ffn * sizes.hidden;  // weights
  const int64_t keys = 2 * sizes.batch * seq * kv;                                                // all keys and values

  int64_t part(int64_t elements) const { return elements * (p - 1) / p * e; }
  Operations of(const char* method, const char* layer, const char* pass) const { return measured(method, layer, ranks, sizes, pass).operations; }
};

TEST_P(ParallelTraffic, tensor_parallel) {
  for (const char* layer : {"attention", "mlp"}) {
    EXPECT_EQ(of("tp", layer, "forward"), (Operations{{"all_reduce", {1, 2 * part(x), 2 * part(x)}}}));
    EXPECT_EQ(of("tp", layer, "backward"), (Operations{{"all_reduce", {1, 2 * part(x), 2 * part(x)}}}));
  }
  EXPECT_EQ(of("tp", "block", "both"), (Operations{{"all_reduce", {4, 8 * part(x), 8 * part(x)}}}));
}

TEST_P(ParallelTraffic, tokens_spread_over_ranks) {
  const int64_t groups = std::min<int64_t>(sizes.kv_heads, 4);
  EXPECT_EQ(of("sp", "attention", "forward"), (Operations{{"all_gather", {groups, part(keys), part(keys)}}}));
  EXPECT_EQ(of("sp", "attention", "backward"), (Operations{{"all_gather", {groups, part(keys), part(keys)}},
                                                           {"reduce_scatter", {groups, part(keys), part(keys)}},
                                                           {"all_reduce", {1, 2 * part(attention), 2 * part(attention)}}}));
  EXPECT_EQ(of("sp", "mlp", "forward"), Operations{});
  EXPECT_EQ(of("ring", "attention", "forward"), (Operations{{"send_receive", {2 * (p - 1), part(keys), part(keys)}}}));
  const auto ring = of("ring", "attention", "backward");
  EXPECT_EQ(ring.at("send_receive"), (comm::AxisTraffic{2 * (2 * p - 1), part(keys) + keys * e, part(keys) + keys * e}));
  const auto exchanged = of("ulysses", "attention", "forward");
  EXPECT_EQ(exchanged.size(), 1u);
  EXPECT_EQ(exchanged.at("all_to_all").sent_bytes, part(sizes.batch * seq / p * (2 * q + 2 * kv)));
}

TEST_P(ParallelTraffic, folded) {
  EXPECT_EQ(of("tsp", "attention", "forward"),
            (Operations{{"broadcast", {p, attention / p * (p - 1) * e, part(attention)}}, {"all_gather", {p, part(keys), part(keys)}}}));
  EXPECT_EQ(of("tsp", "mlp", "forward"), (Operations{{"send_receive", {2 * (p - 1), part(mlp), part(mlp)}}}));
  EXPECT_EQ(of("tsp", "mlp", "both"), (Operations{{"send_receive", {6 * (p - 1), 3 * part(mlp), 3 * part(mlp)}}}));
}

TEST_P(ParallelTraffic, sharded_weights_and_gathered_keys) {
  const auto forward = of("fsdp+cp", "mlp", "forward"), backward = of("fsdp+cp", "mlp", "backward");
  EXPECT_EQ(forward, (Operations{{"all_gather", {1, part(mlp), part(mlp)}}}));
  EXPECT_EQ(backward, (Operations{{"all_gather", {1, part(mlp), part(mlp)}}, {"reduce_scatter", {1, part(mlp), part(mlp)}}}));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParallelTraffic, ::testing::Values(2, 4));

TEST(Parallel, what_cannot_be_cut_is_refused_by_all_ranks) {
  EXPECT_THAT(measured("tp", "attention", 2, {.hidden = 32, .heads = 8, .kv_heads = 1, .ffn = 64}, "forward").refused, HasSubstr("kv heads"));
  EXPECT_THAT(measured("tsp", "mlp", 2, {.hidden = 32, .heads = 8, .kv_heads = 8, .ffn = 65}, "forward").refused, HasSubstr("ffn = 65"));
  EXPECT_THAT(measured("sp", "block", 2, {.hidden = 32, .heads = 8, .kv_heads = 8, .ffn = 64}, "forward", 63).refused, HasSubstr("63 tokens"));
  EXPECT_THAT(measured("tp+sp", "block", 3, {.hidden = 32, .heads = 8, .kv_heads = 8, .ffn = 66}, "forward").refused, HasSubstr("do not make two axes"));
}

TEST(Parallel, results_survive_json) {
  const auto result = measured("tsp", "block", 2, {.hidden = 32, .heads = 8, .kv_heads = 8, .ffn = 64}, "both");
  const auto again = parallel_results(to_json({result}), result.sizes).at(0);
  EXPECT_EQ(again.operations, result.operations);
  EXPECT_DOUBLE_EQ(again.time_s, result.time_s);
  EXPECT_EQ(again.what.method, "tsp");
  EXPECT_THAT(parallel_tables({result}), HasSubstr("tsp"));
}

}  // namespace
}  // namespace ingot::bench
