// Messages of a step against their formulas on a cluster of round numbers, and a cluster as a machine profile.
#include "plan/communication.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/cluster_profile.h"
#include "plan/rates.h"
#include "plan/test_support.h"

namespace ingot::plan {
namespace {

// One node of 8 with 1 GB/s from each device to whichever others, and no latencies.
schedule::Cluster round_cluster(int64_t nodes = 1) {
  schedule::Cluster c;
  c.name = "round";
  c.devices_per_node = 8;
  c.nodes = nodes;
  c.memory_bytes = 1e9;
  c.memory_bytes_per_s = 1e11;
  c.node = {schedule::Links::Shape::any, 1e9, 0};
  c.network = {schedule::Links::Shape::any, 1e8, 0};
  c.compute = {{.dtype = "fp32",
                .gemm_flops_per_s = 1e12,
                .attention_flops_per_s = 5e11,
                .attention_backward_flops_per_s = 5e11,
                .state_flops_per_s = 5e11}};
  return c;
}

std::unique_ptr<models::Model> model_of(const std::string& family, const parallel::Layout& layout = {}) {
  return models::create_model(small_model(family), layout);
}

RunShape run_of(int64_t replicas, int64_t zero) {
  RunShape run{.batch = 8, .microbatch = 2, .seq = 64};
  run.replicas = replicas;
  run.zero = zero;
  return run;
}

double trained_bytes(const models::Model& model) { return 4.0 * static_cast<double>(model.parameters().weight_elements()); }

// Tensors and buckets begin at multiples of 128 bytes.
constexpr double kPadding = 2e-6;

// What the messages of a run add; nothing else takes time but where `compute` says so.
StepCommunication predicted(const schedule::Cluster& cluster, const models::Model& part, const RunShape& run,
                            const StepTime& compute = {}) {
  const CommunicationModel model(cluster);
  PassPrices prices(Rates(round_machine(1e30, 1e30), "fp32"), model.transport());
  return model.predict(part, run, compute, prices);
}

TEST(Messages, of_gradients_take_what_travels_less_what_hides) {
  const auto model = model_of("llama");
  const double n = trained_bytes(*model), layers = 3;
  const auto gradients = [&](int64_t zero, double compute_s, int64_t replicas = 4) {
    StepTime compute;
    compute.gemm_s = compute_s;
    return predicted(round_cluster(), *model, run_of(replicas, zero), compute).gradients_s;
  };
  // Nothing to hide behind: all of it.
  EXPECT_NEAR(gradients(0, 0), 2 * n * 3 / 4 / 1e9, kPadding);
  EXPECT_NEAR(gradients(1, 0), 2 * n * 3 / 4 / 1e9, kPadding);
  EXPECT_NEAR(gradients(2, 0), (4 + 1) * n * 3 / 4 / 1e9, 5 * kPadding);  // 4 microbatches
  // The embedding, which is the head as well, and the last block, with which backward begins, are gathered once for both passes.
  const double once = 4.0 * (320 * 96 + 96 * (2 * 128 + 2 * 64) + 3 * 96 * 256);
  EXPECT_NEAR(gradients(3, 0), 4 * (3 * n - once) * 3 / 4 / 1e9, 30 * kPadding);
  // Much to hide behind: the last layer's gradients and the first one's weights are left, and what the others slow down.
  const double all_s = 2 * n * 3 / 4 / 1e9;
  EXPECT_NEAR(gradients(1, 1e3), all_s / layers + 0.189 * all_s * (layers - 1) / layers, kPadding);
  // Of 4 microbatches the last one's backward pass, 2/3 of it, hides half of the sums.
  const double sums_s = n * 3 / 4 / 1e9;
  EXPECT_NEAR(gradients(0, 4 * 1.5 * sums_s), sums_s + 0.189 * sums_s, kPadding);
  EXPECT_EQ(gradients(1, 0, 1), 0);
}

TEST(Messages, over_a_network_are_as_slow_as_it_is) {
  const auto model = model_of("llama");
  const auto on = [&](int64_t nodes, int64_t replicas) { return predicted(round_cluster(nodes), *model, run_of(replicas, 1)).gradients_s; };
  EXPECT_NEAR(on(4, 8), on(1, 8), 1e-12);
  EXPECT_GT(on(4, 32), on(1, 8));
}

// Megatron's tensor parallelism with sequence parallelism: a gather and a reduce-scatter around each half of a block, and the same
// backward, where the gathers of what came in are made once more.
TEST(Messages, within_blocks_are_what_the_program_sends) {
  parallel::Layout layout;
  layout.tensor = {.rank = 0, .size = 2, .shards_tokens = true};
  const auto part = model_of("llama", layout);
  const double bytes = 2 * 64 * 96 * 4, microbatches = 4;
  const auto pass = trace_pass(*part, run_of(1, 0).pass_of(*part));
  EXPECT_EQ(pass.block(1).forward.communications.size(), 4U);
  double received = 0;
  for (const auto* segment : {&pass.embedding.forward, &pass.embedding.backward, &pass.head.forward, &pass.head.backward})
    for (const auto& c : segment->communications) received += static_cast<double>(c.received_bytes);
  for (int64_t layer = 0; layer < 3; ++layer)
    for (const auto* segment : {&pass.block(layer).forward, &pass.block(layer).backward})
      for (const auto& c : segment->communications) {
        received += static_cast<double>(c.received_bytes);
        EXPECT_EQ(static_cast<double>(c.received_bytes), bytes / 2);
      }
  // Nothing hides where computing takes no time.
  EXPECT_NEAR(predicted(round_cluster(), *part, run_of(1, 0)).blocks_s, microbatches * received / 1e9, 1e-9);
  EXPECT_EQ(predicted(round_cluster(), *model_of("llama"), run_of(1, 0)).blocks_s, 0);
}

// Ranks of a tensor axis were taken to send the whole sequence's rows to the experts, as often as there are ranks.
TEST(Messages, of_experts_are_those_of_a_ranks_own_slice_of_the_stream) {
  parallel::Layout layout;
  layout.experts.size = 4;
  layout.tensor = {.rank = 0, .size = 2, .shards_tokens = true};
  const double rows = 2.0 * 64 * 96 * 4;  // of a microbatch: tokens, hidden, bytes
  auto run = run_of(2, 1);
  run.expert_load = 1;
  EXPECT_NEAR(predicted(round_cluster(), *model_of("zaya1", layout), run).experts_s, 4 * 3 * 4 * rows / 2 * 3 / 4 / 1e9,
              0.02 * 72 * rows / 1e9);
}

TEST(Messages, of_experts_wait_for_the_busiest_rank) {
  parallel::Layout layout;
  layout.experts.size = 4;
  const auto mixture = model_of("zaya1", layout);
  const auto seconds = [&](double load) {
    auto run = run_of(4, 1);
    run.expert_load = load;
    return predicted(round_cluster(), *mixture, run).experts_s;
  };
  EXPECT_NEAR(seconds(1.5) / seconds(1), 1.5, 0.03);
  EXPECT_NEAR(seconds(9) / seconds(1), 4, 0.05) << "more than all rows there are not";
}

TEST(Messages, slow_nothing_down_where_cores_move_them) {
  auto cluster = round_cluster();
  StepTime compute;
  compute.gemm_s = 1e3;
  const auto model = model_of("llama");
  PassTraces traces;
  EXPECT_GT(CommunicationModel(cluster).contention_s(*model, run_of(4, 1), compute, traces), 0);
  cluster.cores_communicate = true;
  EXPECT_EQ(CommunicationModel(cluster).contention_s(*model, run_of(4, 1), compute, traces), 0);
}

TEST(Messages, of_experts_and_stages_follow_their_formulas) {
  parallel::Layout layout;
  layout.experts.size = 4;
  const auto mixture = model_of("zaya1", layout);
  auto run = run_of(4, 1);
  run.expert_load = 1;
  const double rows = 2.0 * 64 * 96 * 4;  // of a microbatch: tokens, hidden, bytes
  EXPECT_NEAR(predicted(round_cluster(), *mixture, run).experts_s, 4 * 3 * 4 * rows * 3 / 4 / 1e9, 0.02 * 72 * rows / 1e9);
  run.recompute = models::Recompute::full;
  EXPECT_NEAR(predicted(round_cluster(), *mixture, run).experts_s, 6 * 3 * 4 * rows * 3 / 4 / 1e9, 0.02 * 72 * rows / 1e9);

  parallel::Layout stages;
  stages.stage = {.rank = 0, .size = 3, .pieces = {{0, 1}, {1, 2}, {2, 3}}};
  const auto first = model_of("llama", stages);
  run = run_of(1, 0);
  run.kept_microbatches = 4;
  EXPECT_NEAR(predicted(round_cluster(), *first, run).stages_s, 2 * 2 * rows / 1e9, 1e-12);
  // The fourth microbatch waits for the first one, which goes through two stages and back: 4 messages shared by the 3 that are kept.
  run.kept_microbatches = 3;
  EXPECT_NEAR(predicted(round_cluster(), *first, run).stages_s, (4 + 4.0 / 3) * rows / 1e9, 1e-12);
}

TEST(ClusterProfile, gives_the_clusters_rates_between_its_points) {
  auto cluster = round_cluster();
  cluster.kernel_launch_s = 3e-6;
  cluster.compute[0].half_m = cluster.compute[0].half_n = cluster.compute[0].half_k = 64;
  const Rates rates(profile_of(cluster, "fp32"), "fp32");
  for (const int64_t m : {100, 1000, 10000})
    for (const int64_t in : {200, 3000, 14336})
      for (const int64_t out : {300, 5000}) {
        const schedule::Gemm gemm{m, out, in};
        const double expected = schedule::compute_duration(gemm, cluster, cluster.compute[0], /*is_launched=*/true);
        // Coarse where launches are a large part, close where GEMMs are.
        EXPECT_NEAR(gemm.flops() / rates.gemm_rate(Pass::forward, m, out, in, false) / expected, 1, gemm.flops() > 1e10 ? 0.1 : 0.35)
            << m << " " << in << " " << out;
      }
  EXPECT_NEAR(rates.move_s(3e9), 3e9 / 1e11, 3e9 / 1e11 * 0.01);
  EXPECT_GT(rates.kernel_s("muon", 1024, 1024, false).value(), 0);
}

// What the models' authors publish.
TEST(Published, parameter_counts_are_the_models) {
  const auto parameters = [](int64_t layers, int64_t hidden, int64_t heads, int64_t ffn) {
    models::ModelConfig c{.family = "llama", .layers = layers, .hidden = hidden, .vocab_size = 128256, .heads = heads, .kv_heads = 8};
    c.ffn = ffn;
    c.tie_embeddings = false;
    return models::create_model(c)->parameters().weight_elements();
  };
  EXPECT_EQ(parameters(32, 4096, 32, 14336), 8'030'261'248);
  EXPECT_EQ(parameters(80, 8192, 64, 28672), 70'553'706'496);
  EXPECT_EQ(parameters(126, 16384, 128, 53248), 405'853'388'800);
}

// A machine whose cores move the messages, with times of its own for some of them.
MachineProfile measured_machine() {
  auto profile = round_machine(1e11, 2e10);
  for (const char* operation : {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "send_receive"})
    for (const int64_t ranks : {2, 4})
      for (const int64_t bytes : {1000, 1'000'000})
        profile.collectives.push_back({operation, "fp32", "neighbours", ranks, 1, bytes, static_cast<double>(bytes * ranks) * 1e-9});
  return profile;
}

TEST(MachineAsCluster, messages_take_what_was_measured) {
  const auto cluster = cluster_of(measured_machine(), "fp32", 4, 0);
  const auto seconds = [&](schedule::Kind kind, int ranks, int64_t bytes) {
    return schedule::communication_duration({.kind = kind, .group = {0, ranks, 1}, .bytes = bytes, .peer = 1}, cluster).busy_s;
  };
  using schedule::Kind;
  EXPECT_DOUBLE_EQ(seconds(Kind::all_reduce, 2, 1000), 2e-6);
  EXPECT_DOUBLE_EQ(seconds(Kind::all_gather, 4, 1'000'000), 4e-3);
  EXPECT_NEAR(seconds(Kind::all_to_all, 2, 31623), 2 * 31623e-9, 1e-9);  // on the line between the logarithms
  EXPECT_DOUBLE_EQ(seconds(Kind::all_reduce, 2, 10), 2e-6);              // no less than the smallest
  EXPECT_DOUBLE_EQ(seconds(Kind::all_reduce, 2, 4'000'000), 8e-3);       // in proportion to the largest
  EXPECT_DOUBLE_EQ(seconds(Kind::all_reduce, 3, 1000), 4e-6);            // as a group of the nearest size, by ratio
  EXPECT_DOUBLE_EQ(seconds(Kind::send, 1, 1000), 2e-6);
  EXPECT_THROW(cluster_of(round_machine(1e11, 2e10), "fp32", 2, 0), base::ProfileError);
  EXPECT_NO_THROW(cluster_of(round_machine(1e11, 2e10), "fp32", 1, 0));
}

TEST(MachineAsCluster, nothing_hides_behind_cores_that_move_messages) {
  const auto model = model_of("llama");
  auto run = run_of(4, 0);
  run.world = 4;
  StepTime compute;
  compute.gemm_s = 1e3;
  const double n = trained_bytes(*model);
  EXPECT_NEAR(predict_communication(*model, run, measured_machine(), compute).gradients_s, 4 * n * 1e-9, 4 * kPadding);
  run.world = 1;
  EXPECT_EQ(predict_communication(*model, run, round_machine(1e11, 2e10), compute).total_s(), 0);
}

// Over a tensor axis a block sums its outputs: twice forward, twice backward; and so do embedding and head once each.
TEST(MachineAsCluster, messages_of_blocks_count_in_full) {
  parallel::Layout layout;
  layout.tensor = {.rank = 0, .size = 2, .shards_tokens = false};
  const auto part = model_of("llama", layout);
  auto run = run_of(1, 0);
  run.world = 2;
  const double bytes = 2 * 64 * 96 * 4, sums = (4 * 3 + 2) * 4;  // of a microbatch; per block, blocks, microbatches
  EXPECT_NEAR(predict_communication(*part, run, measured_machine(), {}).blocks_s, sums * bytes * 2e-9,
              0.02 * sums * bytes * 2e-9);  // and the loss's statistics
}

}  // namespace
}  // namespace ingot::plan
