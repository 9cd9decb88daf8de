// Times of small programs against closed forms.
#include "schedule/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "schedule/build.h"
#include "schedule/cluster.h"
#include "schedule/traffic.h"

namespace ingot::schedule {
namespace {

constexpr double kEndless = 1e300;

// A machine on which everything is free but what a test gives a price.
Cluster free_machine(double flops_per_s = kEndless, double link_bytes_per_s = kEndless) {
  Cluster c;
  c.name = "free";
  c.devices_per_node = 1024;
  c.memory_bytes = c.memory_bytes_per_s = kEndless;
  c.node.bytes_per_s = link_bytes_per_s;
  c.compute = {{.dtype = "bf16",
                .gemm_flops_per_s = flops_per_s,
                .attention_flops_per_s = flops_per_s,
                .attention_backward_flops_per_s = flops_per_s,
                .state_flops_per_s = flops_per_s}};
  return c;
}

Replay replay_on(const Layout& layout, const Cluster& cluster) {
  return replay(build(layout),
                [&](const Operation& operation) { return duration_of(operation, cluster, cluster.rates(layout.sizes.dtype)); });
}

// By names: a price for each operation whose name starts so.
Durations priced(std::vector<std::pair<std::string, double>> prices) {
  return [prices = std::move(prices)](const Operation& operation) {
    for (const auto& [name, price] : prices)
      if (operation.name.starts_with(name)) return Duration(price);
    return Duration(0);
  };
}

Message message_to(Kind kind, int own, int peer) { return {kind, {.first = own}, 8, 1, peer}; }

// p ranks; each computes on what it has while it goes round.
Program ring(int ranks) {
  Program program;
  for (int rank = 0; rank < ranks; ++rank) {
    OperationList list;
    auto here = list.buffer(8);
    list.add("begin", Stream::compute, Move{8}, {}, {here});
    for (int step = 0; step < ranks; ++step) {
      const auto now = here;
      if (step + 1 < ranks) {
        list.add("hop", Stream::sending, message_to(Kind::send, rank, (rank + 1) % ranks), {now}, {});
        here = list.buffer(8);
        list.add("hop", Stream::receiving, message_to(Kind::receive, rank, (rank + ranks - 1) % ranks), {}, {here});
      }
      list.add("work", Stream::compute, Move{8}, {now}, {});
    }
    program.ranks.push_back(std::move(list));
  }
  return program;
}

class Rings : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Rings, ::testing::Values(2, 3, 5, 8), [](const auto& info) { return std::to_string(info.param); });

TEST_P(Rings, a_hop_hides_behind_work_or_work_behind_a_hop) {
  const int p = GetParam();
  for (const auto& [hop, work] : {std::pair{1.0, 4.0}, {4.0, 1.0}, {2.0, 2.0}}) {
    const auto result = replay(ring(p), priced({{"hop", hop}, {"work", work}}));
    EXPECT_DOUBLE_EQ(result.time_s, work + (p - 1) * std::max(hop, work));
    EXPECT_DOUBLE_EQ(result.exposed_s, (p - 1) * std::max(0.0, hop - work));
    EXPECT_DOUBLE_EQ(result.ranks[0].busy_s[static_cast<size_t>(Stream::sending)], (p - 1) * hop);
  }
}

TEST_P(Rings, two_buffers_of_a_ring_live_at_a_time) {
  EXPECT_EQ(replay(ring(GetParam()), priced({{"hop", 1}, {"work", 4}})).peak_bytes, 16);
  EXPECT_EQ(replay(ring(GetParam()), priced({{"hop", 4}, {"work", 1}})).peak_bytes, 16);
}

TEST(Replay, what_is_waited_for_is_exposed_and_what_is_not_is_hidden) {
  for (const double gather : {1.0, 3.0, 10.0}) {
    Program program;
    for (int rank = 0; rank < 2; ++rank) {
      OperationList list;
      const auto own = list.input(8), all = list.buffer(16);
      list.add("gather", Stream::collective, Message{Kind::all_gather, {0, 2, 1}, 16, 1}, {own}, {all});
      list.add("beside", Stream::compute, Move{1}, {}, {});
      list.add("after", Stream::compute, Move{1}, {all}, {});
      program.ranks.push_back(std::move(list));
    }
    const auto result = replay(program, priced({{"gather", gather}, {"beside", 3}, {"after", 2}}));
    EXPECT_DOUBLE_EQ(result.time_s, std::max(gather, 3.0) + 2);
    EXPECT_DOUBLE_EQ(result.exposed_s, std::max(0.0, gather - 3));
  }
}

TEST(Replay, a_collective_waits_for_the_slowest) {
  Program program;
  for (int rank = 0; rank < 3; ++rank) {
    OperationList list;
    list.add(rank == 1 ? "slow" : "fast", Stream::compute, Move{1}, {}, {});
    list.add("sum", Stream::collective, Message{Kind::all_reduce, {0, 3, 1}, 16, 1}, {}, {});
    program.ranks.push_back(std::move(list));
  }
  const auto result = replay(program, priced({{"slow", 7}, {"fast", 1}, {"sum", 2}}));
  EXPECT_DOUBLE_EQ(result.time_s, 9);
  EXPECT_DOUBLE_EQ(result.exposed_s, 2);
  EXPECT_DOUBLE_EQ(result.ranks[0].spans[1].begin_s, 7);
}

TEST(Replay, latency_delays_a_message_and_not_the_next_one) {
  Program program;
  for (int rank = 0; rank < 2; ++rank) {
    OperationList list;
    for (int i = 0; i < 5; ++i)
      list.add("block", rank == 0 ? Stream::sending : Stream::receiving, message_to(rank == 0 ? Kind::send : Kind::receive, rank, 1 - rank),
               {}, {});
    program.ranks.push_back(std::move(list));
  }
  EXPECT_DOUBLE_EQ(replay(program, [](const Operation&) { return Duration(2, 7); }).time_s, 5 * 2 + 7);
}

TEST(Replay, memory_counts_from_the_first_write_to_the_last_use) {
  OperationList list;
  list.resident(1000);
  const auto x = list.input(100), a = list.buffer(10), b = list.buffer(1);
  list.add("a", Stream::compute, Move{1}, {x}, {a});
  list.add("b", Stream::compute, Move{1}, {a}, {b});  // x is gone, a is not yet
  list.keep(b);
  EXPECT_EQ(replay({{list}}, [](const Operation&) { return 1.0; }).peak_bytes, 1110);
}

TEST(Replay, what_was_made_before_a_pass_is_there_when_it_begins) {
  OperationList list;
  const auto x = list.input(100), saved = list.buffer(10), unused = list.buffer(500);
  list.add("forward", Stream::compute, Move{1}, {x}, {saved, unused});
  const auto end = list.size();
  list.add("backward", Stream::compute, Move{1}, {saved}, {});
  list.drop_before(end);
  EXPECT_EQ(list.size(), 1);
  EXPECT_EQ(replay({{list}}, [](const Operation&) { return 1.0; }).peak_bytes, 10);
}

TEST(Replay, a_missing_partner_and_a_wrong_one_are_named) {
  const auto words_of = [](const Program& program) -> std::string {
    try {
      replay(program, priced({}));
    } catch (const base::CommError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  OperationList sends, gathers, sums, nothing;
  sends.add("state on", Stream::sending, message_to(Kind::send, 0, 1), {}, {});
  gathers.add("gather k v", Stream::collective, Message{Kind::all_gather, {0, 2, 1}, 16, 1}, {}, {});
  sums.add("sum gradients", Stream::collective, Message{Kind::all_reduce, {0, 2, 1}, 16, 1}, {}, {});
  EXPECT_THAT(words_of({{sends, nothing}}), ::testing::HasSubstr("rank 0 would wait for ever in 0 'state on': 1 of 2"));
  EXPECT_THAT(words_of({{gathers, sums}}), ::testing::HasSubstr("rank 0's all_gather 'gather k v' of 16 bytes meets rank 1's all_reduce"));
}

TEST(Replay, a_circle_of_waiting_is_found) {
  Program program;
  for (int rank = 0; rank < 2; ++rank) {
    OperationList list;
    const auto in = list.buffer(8);
    list.add("receive", Stream::receiving, message_to(Kind::receive, rank, 1 - rank), {}, {in});
    list.add("send", Stream::sending, message_to(Kind::send, rank, 1 - rank), {in}, {});
    program.ranks.push_back(std::move(list));
  }
  EXPECT_THROW(replay(program, priced({})), base::CommError);
}

Layout linear_layout(Method method, int ranks) {
  return {.method = method,
          .layer = Layer::linear_attention,
          .pass = Pass::forward,
          .sizes = {.hidden = 64, .heads = 4, .kv_heads = 4, .head_dim = 16, .ffn = 64, .batch = 1, .seq = 64 * ranks},
          .ranks = ranks};
}

class Chains : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Chains, ::testing::Values(2, 3, 8, 64), [](const auto& info) { return std::to_string(info.param); });

// tau for a state, u to use and add it: the last rank has it after W - 1 of both.
TEST_P(Chains, lasp1_hands_the_state_through_all_ranks) {
  const int w = GetParam();
  const auto prices = priced({{"own state", 2}, {"within", 11}, {"state ", 5}, {"from before", 3}, {"add own state", 1}});
  EXPECT_DOUBLE_EQ(replay(build(linear_layout(Method::lasp1, w)), prices).time_s, 2 + 11 + (w - 1) * (5 + 3 + 1.0));
}

TEST_P(Chains, lasp2_takes_the_longer_of_gather_and_work_within) {
  for (const double gather : {1.0, 11.0, 30.0}) {
    const auto prices = priced({{"own state", 2}, {"within", 11}, {"gather states", gather}, {"add up", 1}, {"from before", 3}});
    const auto result = replay(build(linear_layout(Method::lasp2, GetParam())), prices);
    EXPECT_DOUBLE_EQ(result.time_s, 2 + std::max(gather, 11.0) + 1 + 3);
    EXPECT_DOUBLE_EQ(result.exposed_s, std::max(0.0, gather - 11));
  }
}

// tau/K a block: the last block of W - 1 hops arrives after tau + (W - 2) tau/K. The paper's tau + (W - 1) tau/K is one block more.
TEST_P(Chains, zeco_is_as_long_as_one_state_and_a_block_for_every_further_hop) {
  const int w = GetParam();
  for (const int64_t blocks : {1, 2, 8}) {
    auto layout = linear_layout(Method::zeco, w);
    layout.scan_blocks = blocks;
    const double tau = 8, block = tau / static_cast<double>(blocks);
    const auto result = replay(build(layout), priced({{"block ", block}}));
    EXPECT_DOUBLE_EQ(result.time_s, tau + (w - 2) * block);
    const auto hidden = replay(build(layout), priced({{"block ", block}, {"within", 1000}}));
    EXPECT_DOUBLE_EQ(hidden.exposed_s, 0);
  }
}

TEST(Schedules, one_block_of_zeco_is_lasp1_without_the_wait_for_its_use) {
  auto layout = linear_layout(Method::zeco, 16);
  layout.scan_blocks = 1;
  const auto zeco = replay(build(layout), priced({{"block ", 5}, {"from before", 3}}));
  layout.method = Method::lasp1;
  const auto lasp1 = replay(build(layout), priced({{"state ", 5}, {"from before", 3}}));
  EXPECT_DOUBLE_EQ(zeco.time_s, 15 * 5 + 3);
  EXPECT_DOUBLE_EQ(lasp1.time_s, 15 * (5 + 3));
}

// A hop of the MLP's weights hides iff tokens of a rank >= bytes per element x FLOP/s / (2 x bytes/s): nothing else counts.
TEST(Schedules, tsp_hides_the_ring_of_the_mlp_exactly_where_the_inequality_holds) {
  const double rate = 1e12, link = 1e9;  // 2 * 1e12 / (2 * 1e9) = 1000 tokens of a rank
  for (const int ranks : {2, 4, 8})
    for (const int64_t own : {999, 1000, 1001, 3000})
      for (const auto& [hidden, ffn] : {std::pair{int64_t{64}, int64_t{256}}, {int64_t{4096}, int64_t{16384}}}) {
        const Layout layout{.method = Method::tsp,
                            .layer = Layer::mlp,
                            .pass = Pass::forward,
                            .sizes = {.hidden = hidden, .ffn = ffn, .batch = 1, .seq = own * ranks},
                            .ranks = ranks};
        const auto result = replay_on(layout, free_machine(rate, link));
        if (own >= 1000) {
          EXPECT_NEAR(result.exposed_s / result.time_s, 0, 1e-12) << own;
        } else {
          EXPECT_GT(result.exposed_s / result.time_s, 1e-5) << own;
        }
      }
}

TEST(Schedules, tp_never_hides_its_sums) {
  const Layout layout{.method = Method::tp,
                      .layer = Layer::block,
                      .pass = Pass::both,
                      .sizes = {.hidden = 64, .heads = 8, .kv_heads = 8, .head_dim = 8, .ffn = 64, .seq = 64},
                      .ranks = 4};
  const auto result = replay_on(layout, free_machine(kEndless, 1e9));
  EXPECT_DOUBLE_EQ(result.exposed_s, static_cast<double>(sent_bytes(traffic_of(build(layout)))) / 1e9);
}

TEST(Schedules, without_links_to_wait_for_nothing_is_exposed) {
  for (const auto method : {Method::tp, Method::megatron_sp, Method::sp, Method::tp_sp, Method::tsp, Method::fsdp_cp, Method::ring,
                            Method::ulysses, Method::lasp2, Method::zeco}) {
    const Layout layout{.method = method,
                        .layer = Layer::block,
                        .pass = Pass::both,
                        .sizes = {.hidden = 64, .heads = 8, .kv_heads = 8, .head_dim = 8, .ffn = 64, .batch = 1, .seq = 512},
                        .ranks = 4,
                        .tensor_ranks = 2};
    const auto result = replay_on(layout, free_machine(1e12));
    EXPECT_NEAR(result.exposed_s / result.time_s, 0, 1e-12) << name_of(method);
  }
}

TEST(Schedules, contiguous_order_makes_the_last_rank_of_a_gather_wait_for_nobody_and_all_others_for_it) {
  Layout layout{.method = Method::sp,
                .layer = Layer::attention,
                .pass = Pass::forward,
                .sizes = {.hidden = 8, .heads = 8, .kv_heads = 8, .head_dim = 64, .ffn = 64, .batch = 1, .seq = 1 << 16},
                .ranks = 8};
  const double balanced = replay_on(layout, free_machine(1e12)).time_s;
  layout.zigzag = false;
  // The last eighth of a triangle is 15/64 of it.
  EXPECT_NEAR(replay_on(layout, free_machine(1e12)).time_s / balanced, 15.0 / 8, 0.05);
}

TEST(Schedules, memory_of_tsp_falls_with_the_ranks_and_that_of_sp_does_not) {
  const auto peak = [](Method method, int ranks) {
    const Layout layout{.method = method,
                        .layer = Layer::block,
                        .pass = Pass::both,
                        .sizes = {.hidden = 512, .heads = 16, .kv_heads = 16, .head_dim = 32, .ffn = 2048, .batch = 1, .seq = 4096},
                        .ranks = ranks};
    return static_cast<double>(replay_on(layout, free_machine(1e12, 1e10)).peak_bytes);
  };
  EXPECT_NEAR(peak(Method::tsp, 4) / peak(Method::tsp, 8), 2, 0.3);
  EXPECT_NEAR(peak(Method::tsp, 8) / peak(Method::tsp, 16), 2, 0.3);
  EXPECT_GT(peak(Method::tp, 8), peak(Method::tsp, 8));
  EXPECT_GT(peak(Method::sp, 8), peak(Method::tsp, 8));
  const double weights = 6.0 * (4 * 512 * 512 + 3 * 512 * 2048);
  EXPECT_GT(peak(Method::sp, 16), weights);
}

TEST(Schedules, head_buckets_shrink_what_is_gathered) {
  Layout layout{.method = Method::tsp,
                .layer = Layer::attention,
                .pass = Pass::forward,
                .sizes = {.hidden = 64, .heads = 32, .kv_heads = 32, .head_dim = 32, .ffn = 64, .batch = 1, .seq = 1 << 14},
                .ranks = 4};
  const auto whole = replay_on(layout, free_machine(1e12, 1e10)).peak_bytes;
  layout.head_buckets = 4;
  EXPECT_LT(replay_on(layout, free_machine(1e12, 1e10)).peak_bytes, whole);
}

TEST(Schedules, two_layers_of_fsdp_hide_the_second_ones_weights) {
  Layout layout{.method = Method::fsdp_cp,
                .layer = Layer::block,
                .pass = Pass::forward,
                .sizes = {.hidden = 256, .heads = 8, .kv_heads = 1, .head_dim = 32, .ffn = 1024, .batch = 1, .seq = 1 << 14},
                .ranks = 4};
  const auto cluster = free_machine(1e12, 1e10);
  const double one = replay_on(layout, cluster).exposed_s;
  layout.blocks = 2;
  const double weights_s = 2.0 * 3 / 4 * static_cast<double>(layout.sizes.attention_weights()) / 1e10;
  EXPECT_LT(replay_on(layout, cluster).exposed_s, 2 * one - 0.99 * weights_s);
}

}  // namespace
}  // namespace ingot::schedule
