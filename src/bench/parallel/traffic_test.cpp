// Bytes and counts of every method's traces against the formulas that its paper states, integer for integer.
#include "schedule/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "bench/parallel/layer_program.h"
#include "parallel/buckets.h"
#include "schedule/replay.h"

namespace ingot::bench {
namespace {

using namespace schedule;  // NOLINT(google-build-using-namespace): its names make up the sweeps

Program build(const Layout& layout) { return trace_layer(layout, device::Target::fused_gpu).program; }

Sizes small_sizes() {
  return {.hidden = 48, .heads = 24, .kv_heads = 12, .head_dim = 8, .ffn = 96, .batch = 2, .seq = 96, .dtype = "bf16"};
}

Layout layout_of(Method method, Layer layer, Pass pass, int ranks, int tensor_ranks = 1) {
  return {.method = method, .layer = layer, .pass = pass, .sizes = small_sizes(), .ranks = ranks, .tensor_ranks = tensor_ranks};
}

// What both directions carry over the whole program, checked to be the same.
KindTraffic both_ways(const Layout& layout, const std::string& kind) {
  const auto traffic = traffic_of(build(layout));
  const auto found = traffic.find(kind);
  return found == traffic.end() ? KindTraffic{} : found->second;
}

KindTraffic same(int64_t calls, int64_t bytes) { return {calls, bytes, bytes}; }

// Letters of the formulas.
struct Letters {
  explicit Letters(const Layout& layout)
      : p(layout.ranks),
        b(layout.sizes.batch),
        s(layout.sizes.seq),
        h(layout.sizes.hidden),
        q(layout.sizes.q_width()),
        w(layout.sizes.kv_width()),
        f(layout.sizes.ffn),
        a(h * (2 * q + 2 * w)),
        m(3 * h * f) {}
  int64_t p, b, s, h, q, w, f, a, m;
};
constexpr int64_t e = 2, wide = 4;

// One way of a reduction of the gradients of a block's two norms, in the buckets' alignment.
int64_t norm_bytes(const Layout& layout) {
  const int64_t p = layout.ranks, grain = parallel::Buckets::kAlignment;
  const int64_t elements = 2 * ((layout.sizes.hidden + grain - 1) / grain * grain),
                padded = (elements + grain * p - 1) / (grain * p) * grain * p;
  return (p - 1) * padded / p * wide;
}

class ByRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ByRanks, ::testing::Values(2, 3, 4, 6), [](const auto& info) { return std::to_string(info.param); });

TEST_P(ByRanks, tp_sums_activations_once_per_layer_and_pass) {
  const auto layout = layout_of(Method::tp, Layer::block, Pass::both, GetParam());
  const Letters l(layout);
  EXPECT_EQ(both_ways(layout, "all_reduce"), same(4, 4 * 2 * (l.p - 1) * (l.b * l.s * l.h / l.p) * e));
  EXPECT_EQ(traffic_of(build(layout)).size(), 1u);
}

TEST_P(ByRanks, megatron_sp_moves_the_same_bytes_by_gathers_and_scatters) {
  const auto layout = layout_of(Method::megatron_sp, Layer::block, Pass::both, GetParam());
  const Letters l(layout);
  const int64_t one = (l.p - 1) * (l.b * l.s * l.h / l.p) * e;
  EXPECT_EQ(both_ways(layout, "all_gather"), same(4, 4 * one));
  EXPECT_EQ(both_ways(layout, "reduce_scatter"), same(4, 4 * one));
  EXPECT_EQ(both_ways(layout, "all_reduce"), same(1, 2 * norm_bytes(layout)));
  EXPECT_EQ(sent_bytes(traffic_of(build(layout))) - 2 * norm_bytes(layout),
            sent_bytes(traffic_of(build(layout_of(Method::tp, Layer::block, Pass::both, GetParam())))));
}

TEST_P(ByRanks, sp_gathers_keys_and_values_and_sums_gradients_of_whole_weights) {
  const auto layout = layout_of(Method::sp, Layer::block, Pass::both, GetParam());
  const Letters l(layout);
  const int64_t kv = (l.p - 1) * 2 * l.b * (l.s / l.p) * l.w * e;
  EXPECT_EQ(both_ways(layout, "all_gather"), same(8, 2 * kv));
  EXPECT_EQ(both_ways(layout, "reduce_scatter"), same(4, kv));
  EXPECT_EQ(both_ways(layout, "all_reduce"), same(2, 2 * (l.p - 1) * ((l.a + l.m) / l.p) * wide + 2 * norm_bytes(layout)));
}

TEST_P(ByRanks, tsp_counts_are_those_of_the_fact_sheet) {
  auto layout = layout_of(Method::tsp, Layer::block, Pass::forward, GetParam());
  const Letters l(layout);
  const int64_t kv = (l.p - 1) * 2 * l.b * (l.s / l.p) * l.w * e, a = (l.p - 1) * l.a / l.p, m = (l.p - 1) * l.m / l.p;
  const int64_t visits = std::min(l.p, layout.sizes.kv_heads);
  EXPECT_EQ(both_ways(layout, "broadcast"), same(l.p, a * e));
  EXPECT_EQ(both_ways(layout, "all_gather"), same(visits, kv));
  EXPECT_EQ(both_ways(layout, "send_receive"), same(l.p - 1, m * e));
  EXPECT_EQ(both_ways(layout, "all_reduce"), KindTraffic{});

  layout.pass = Pass::backward;
  EXPECT_EQ(both_ways(layout, "broadcast"), same(l.p, a * e));
  EXPECT_EQ(both_ways(layout, "all_gather"), same(visits, kv));
  EXPECT_EQ(both_ways(layout, "reduce_scatter"), same(visits, kv));
  EXPECT_EQ(both_ways(layout, "reduce"), same(l.p, a * wide));
  EXPECT_EQ(both_ways(layout, "send_receive"), same(2 * (l.p - 1), m * (e + wide)));
}

TEST_P(ByRanks, head_buckets_multiply_gathers_and_not_bytes) {
  auto layout = layout_of(Method::tsp, Layer::attention, Pass::both, GetParam());
  const auto whole = both_ways(layout, "all_gather");
  layout.head_buckets = 2;
  const auto cut = both_ways(layout, "all_gather");
  EXPECT_EQ(cut.received_bytes, whole.received_bytes);
  EXPECT_EQ(cut.calls, 2 * whole.calls);
}

TEST_P(ByRanks, fsdp_cp_moves_what_tsp_moves) {
  const auto folded = layout_of(Method::tsp, Layer::block, Pass::both, GetParam());
  const auto gathered = layout_of(Method::fsdp_cp, Layer::block, Pass::both, GetParam());
  // The gradients of norms, which TSP sums where FSDP scatters.
  EXPECT_EQ(received_bytes(traffic_of(build(gathered))) + norm_bytes(gathered), received_bytes(traffic_of(build(folded))));
  EXPECT_EQ(both_ways(gathered, "all_gather").calls, 2 * (1 + 4));
  EXPECT_EQ(both_ways(gathered, "reduce_scatter").calls, 1 + 4 + 1);
}

TEST_P(ByRanks, ring_sends_keys_twice_and_their_gradients_once_round) {
  const auto layout = layout_of(Method::ring, Layer::attention, Pass::both, GetParam());
  const Letters l(layout);
  const int64_t own = 2 * l.b * (l.s / l.p) * l.w;
  EXPECT_EQ(both_ways(layout, "send_receive"), same(3 * l.p - 2, 2 * (l.p - 1) * own * e + l.p * own * wide));
  EXPECT_EQ(both_ways(layout_of(Method::ring, Layer::attention, Pass::forward, GetParam()), "send_receive"),
            same(l.p - 1, (l.p - 1) * own * e));
}

TEST_P(ByRanks, ulysses_exchanges_tokens_for_heads) {
  const auto layout = layout_of(Method::ulysses, Layer::attention, Pass::forward, GetParam());
  const Letters l(layout);
  EXPECT_EQ(both_ways(layout, "all_to_all"), same(2, (l.p - 1) * (l.b * (l.s / l.p) * (2 * l.q + 2 * l.w) / l.p) * e));
}

TEST(Traces, ulysses_repeats_kv_heads_that_are_fewer_than_ranks) {
  auto layout = layout_of(Method::ulysses, Layer::attention, Pass::forward, 4);
  layout.sizes.kv_heads = 2;
  const Letters l(layout);
  EXPECT_EQ(both_ways(layout, "all_to_all").sent_bytes,
            (l.p - 1) * (l.b * (l.s / l.p) * (2 * l.q + 2 * l.p * layout.sizes.head_dim) / l.p) * e);
}

TEST(Traces, tp_sp_adds_up_in_every_factorisation) {
  for (const int t : factorisations(12)) {
    const auto layout = layout_of(Method::tp_sp, Layer::block, Pass::forward, 12, t);
    const Letters l(layout);
    const int64_t sequence = 12 / t;
    EXPECT_EQ(both_ways(layout, "all_reduce"), same(2, 2 * 2 * (t - 1) * (l.b * l.s / sequence * l.h / t) * e)) << t;
    EXPECT_EQ(both_ways(layout, "all_gather").received_bytes, 2 * l.b * (l.s / sequence) * (l.w / t) * (sequence - 1) * e) << t;
  }
  EXPECT_THAT(factorisations(12), ::testing::ElementsAre(2, 3, 4, 6));
}

TEST(Traces, the_worked_example_of_tsp) {
  // D = 4, h = 8, S = 16, B = 1, g = 1: keys and values 192 elements, gradients back 192, weights 192.
  Layout layout{.method = Method::tsp,
                .layer = Layer::attention,
                .pass = Pass::both,
                .sizes = {.hidden = 8, .heads = 4, .kv_heads = 4, .head_dim = 2, .ffn = 8, .batch = 1, .seq = 16, .dtype = "fp32"},
                .ranks = 4};
  EXPECT_EQ(both_ways(layout, "reduce_scatter").received_bytes, 192 * 4);
  EXPECT_EQ(both_ways(layout, "all_gather").received_bytes, 2 * 192 * 4);
  EXPECT_EQ(both_ways(layout, "broadcast").received_bytes, 2 * 192 * 4);
}

TEST(Traces, kv_heads_shared_by_neighbours_are_gathered_once) {
  auto layout = layout_of(Method::tsp, Layer::attention, Pass::forward, 6);
  layout.sizes.kv_heads = 2;
  layout.sizes.head_dim = 9;
  const Letters l(layout);
  EXPECT_EQ(both_ways(layout, "all_gather"), same(2, (l.p - 1) * 2 * l.b * (l.s / l.p) * l.w * e));
  EXPECT_EQ(both_ways(layout, "broadcast"), same(6, (l.p - 1) * l.a / l.p * e));
}

TEST_P(ByRanks, linear_attention_exchanges_states_whose_size_is_that_of_no_sequence) {
  for (const int64_t seq : {int64_t{96}, int64_t{960}}) {
    auto layout = layout_of(Method::lasp2, Layer::linear_attention, Pass::forward, GetParam());
    layout.sizes.seq = seq;
    layout.sizes.value_dim = 16;
    const int64_t p = layout.ranks, state = layout.sizes.batch * layout.sizes.heads * 8 * 16 * wide;
    EXPECT_EQ(both_ways(layout, "all_gather"), same(1, (p - 1) * state));
    EXPECT_EQ(traffic_of(build(layout)).size(), 1u);
    layout.pass = Pass::both;
    layout.syncs_gradients = false;
    EXPECT_EQ(both_ways(layout, "all_gather"), same(2, 2 * (p - 1) * state));

    layout.method = Method::lasp1;
    EXPECT_EQ(both_ways(layout, "send_receive"), (KindTraffic{p > 2 ? 2 : 1, p > 2 ? 2 * state : state, p > 2 ? 2 * state : state}));
    layout.method = Method::zeco;
    EXPECT_EQ(both_ways(layout, "send_receive").received_bytes, p > 2 ? 2 * state : state);
    EXPECT_EQ(both_ways(layout, "send_receive").calls, (p > 2 ? 2 : 1) * 4);
  }
}

TEST(Traces, a_chain_has_one_message_for_each_edge) {
  for (const auto method : {Method::lasp1, Method::zeco}) {
    const auto program = build(layout_of(method, Layer::linear_attention, Pass::forward, 6));
    int64_t sent = 0;
    for (size_t rank = 0; rank < 6; ++rank)
      for (const auto& operation : program.ranks[rank].operations())
        if (const auto* message = std::get_if<Communication>(&operation.work)) sent += message->kind == Kind::send ? 1 : 0;
    EXPECT_EQ(sent, 5 * (method == Method::zeco ? 4 : 1));
  }
}

// Times of communication alone, in units of one state's; the rest is free, or costs what a test says for each of its operations.
double chain_s(Method method, int ranks, double within_s = 0) {
  const auto layout = layout_of(method, Layer::linear_attention, Pass::forward, ranks);
  const auto& s = layout.sizes;
  const double state = static_cast<double>(s.batch * s.heads * s.head_dim * s.head_dim * wide);
  const auto durations = [&](const Operation& operation) -> Duration {
    if (const auto* message = std::get_if<Communication>(&operation.work)) return static_cast<double>(message->bytes) / state;
    return operation.name == "linear_attention" ? within_s : 0.0;
  };
  return replay(build(layout), durations).time_s;
}

class Chains : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Chains, ::testing::Values(2, 3, 8, 16), [](const auto& info) { return std::to_string(info.param); });

TEST_P(Chains, lasp1_hands_the_state_through_all_ranks) {
  const int p = GetParam();
  EXPECT_DOUBLE_EQ(chain_s(Method::lasp1, p), p - 1);
  EXPECT_DOUBLE_EQ(chain_s(Method::lasp1, p, 1000), p - 1 + 1000);  // its work needs the state
}

TEST_P(Chains, lasp2_takes_the_longer_of_gather_and_work_within) {
  const int p = GetParam();
  EXPECT_DOUBLE_EQ(chain_s(Method::lasp2, p), p);
  EXPECT_DOUBLE_EQ(chain_s(Method::lasp2, p, 1000), 1000);
}

TEST_P(Chains, zeco_is_as_long_as_one_state_and_a_block_for_every_further_hop) {
  const int p = GetParam();
  EXPECT_DOUBLE_EQ(chain_s(Method::zeco, p), 1 + (p - 2) / 4.0);
  EXPECT_DOUBLE_EQ(chain_s(Method::zeco, p, 1000), 1000);  // beside the work within
}

TEST(Traces, tp_never_hides_its_sums) {
  const auto program = build(layout_of(Method::tp, Layer::block, Pass::both, 4));
  const auto result = replay(program, [](const Operation& o) { return std::holds_alternative<Communication>(o.work) ? 7.0 : 1.0; });
  EXPECT_DOUBLE_EQ(result.exposed_s, 4 * 7.0);
}

// Multiply-adds of GEMMs and attention, over all ranks.
double flops_of(const Layout& layout) {
  double sum = 0;
  for (const auto& list : build(layout).ranks)
    for (const auto& operation : list.operations()) {
      if (const auto* gemm = std::get_if<Gemm>(&operation.work)) sum += gemm->flops();
      if (const auto* attention = std::get_if<Attention>(&operation.work)) sum += attention->flops();
    }
  return sum;
}

TEST(Traces, every_method_computes_as_much_as_one_rank) {
  for (const auto pass : {Pass::forward, Pass::both}) {
    const double one = flops_of(layout_of(Method::tp, Layer::block, pass, 1));
    const Letters l(layout_of(Method::tp, Layer::block, pass, 1));
    const double forward = 2.0 * static_cast<double>(l.b * l.s * (l.a + l.m)) + 2.0 * static_cast<double>(l.b * l.s * (l.s + 1) * l.q);
    if (pass == Pass::forward) {
      EXPECT_DOUBLE_EQ(one, forward);
    }
    for (const auto method :
         {Method::tp, Method::megatron_sp, Method::sp, Method::tp_sp, Method::fsdp_cp, Method::ring, Method::ulysses, Method::tsp}) {
      // What a folded rank does a second time in backward: projections of q, k, v, gate and up.
      const double again =
          method == Method::tsp && pass == Pass::both ? 2.0 * static_cast<double>(l.b * l.s * (l.h * (l.q + 2 * l.w) + 2 * l.h * l.f)) : 0;
      EXPECT_DOUBLE_EQ(flops_of(layout_of(method, Layer::block, pass, 6, 2)), one + again) << name_of(method) << " " << name_of(pass);
    }
  }
}

TEST(Traces, zigzag_gives_every_rank_the_same_attention) {
  for (const auto method : {Method::sp, Method::ring, Method::tsp, Method::fsdp_cp}) {
    for (const bool zigzag : {true, false}) {
      auto layout = layout_of(method, Layer::attention, Pass::forward, 4);
      layout.zigzag = zigzag;
      std::vector<double> pairs;
      for (const auto& list : build(layout).ranks) {
        pairs.push_back(0);
        for (const auto& operation : list.operations())
          if (const auto* attention = std::get_if<Attention>(&operation.work)) pairs.back() += attention->flops();
      }
      if (zigzag) {
        EXPECT_THAT(pairs, ::testing::Each(pairs[0])) << name_of(method);
      } else {
        EXPECT_NEAR(pairs[3] / pairs[0], 7, 0.3) << name_of(method);  // quarters of a triangle: 1, 3, 5, 7
      }
    }
  }
}

TEST(Traces, recomputation_repeats_a_forward_pass_and_its_messages) {
  for (const auto method : {Method::tp, Method::sp, Method::tsp, Method::lasp2}) {
    auto layout = layout_of(method, Layer::block, Pass::both, 4);
    layout.syncs_gradients = false;
    const auto once = received_bytes(traffic_of(build(layout)));
    layout.recomputes = true;
    const auto again = received_bytes(traffic_of(build(layout)));
    layout.recomputes = false;
    layout.pass = Pass::forward;
    EXPECT_EQ(again - once, received_bytes(traffic_of(build(layout)))) << name_of(method);
  }
}

TEST(Traces, blocks_follow_one_another) {
  auto layout = layout_of(Method::fsdp_cp, Layer::block, Pass::both, 4);
  const auto one = received_bytes(traffic_of(build(layout)));
  layout.blocks = 3;
  EXPECT_EQ(received_bytes(traffic_of(build(layout))), 3 * one);
}

TEST(Traces, every_schedule_ends_not_before_its_busiest_stream_and_scales_with_its_prices) {
  const auto unit = [](const Operation&) { return 1.0; };
  for (const auto method : all_methods())
    for (const auto layer : {Layer::attention, Layer::mlp, Layer::linear_attention, Layer::block})
      for (const auto pass : {Pass::forward, Pass::backward, Pass::both})
        for (const int ranks : {1, 2, 3, 4, 6}) {
          const auto layout = layout_of(method, layer, pass, ranks, ranks % 2 == 0 ? 2 : 1);
          try {
            check(layout);
          } catch (const base::ConfigError&) {
            continue;
          }
          const auto program = build(layout);
          const auto result = replay(program, unit);
          double busiest = 0;
          size_t operations = 0;
          for (const auto& rank : result.ranks) {
            busiest = std::max(busiest, *std::max_element(rank.busy_s.begin(), rank.busy_s.end()));
            operations += rank.spans.size();
          }
          EXPECT_GE(result.time_s, busiest) << layout.label() << " " << name_of(layer) << " " << ranks;
          EXPECT_LE(result.time_s, static_cast<double>(operations));
          EXPECT_GE(result.exposed_s, 0);
          EXPECT_DOUBLE_EQ(replay(program, [](const Operation&) { return 3.0; }).time_s, 3 * result.time_s);
          const auto slow_messages =
              replay(program, [](const Operation& o) { return std::holds_alternative<Communication>(o.work) ? 2.0 : 1.0; });
          EXPECT_GE(slow_messages.time_s, result.time_s);
        }
}

TEST(Traces, one_rank_says_nothing) {
  for (const auto method : all_methods())
    EXPECT_TRUE(traffic_of(build(layout_of(method, Layer::block, Pass::both, 1))).empty()) << name_of(method);
}

}  // namespace
}  // namespace ingot::bench
