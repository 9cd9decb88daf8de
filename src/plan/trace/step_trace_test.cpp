// What a traced step sends and receives against what real ranks do: threads that train, and count.
#include "plan/trace/step_trace.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/test_night.h"
#include "comm/world.h"
#include "layers/cost.h"
#include "plan/trace/trace_report.h"
#include "train/parallel_model.h"

namespace ingot::plan {
namespace {

struct Layout {
  mesh::ParallelConfig parallel;
  int ranks;
  std::string family = "llama", optimizer = "adamw", linear = "gated_delta";
  std::string recompute = "none";
  int64_t microbatch = 0;
  bool spread = true, by_night = false;
};

train::RunConfig config_of(const Layout& layout) {
  train::RunConfig config;
  auto& c = config.model;
  c.family = layout.family;
  c.layers = 4, c.hidden = 24, c.vocab_size = 48, c.heads = 24, c.kv_heads = 12, c.head_dim = 4, c.ffn = 48;
  c.experts = 4, c.expert_ffn = 12, c.router_hidden = 8, c.rope_fraction = 0.5;
  c.linear_attention = layout.linear, c.feature_map = layout.linear.ends_with("delta") || layout.linear == "kda" ? "l2" : "silu",
  c.layer_pattern = "LLN";
  c.gate_rank = 3, c.norm_eps = 1;
  c.force_balance = true;
  config.parallel = layout.parallel;
  config.parallel.bucket_mib = 0.01;
  config.optimizer.name = layout.optimizer;
  config.optimizer.spread_orthogonalisation = layout.spread;
  config.train.precision = "fp64", config.train.recompute = layout.recompute;
  config.train.batch_size = 12, config.train.microbatch_size = layout.microbatch;
  config.train.steps = 2;
  config.data.seq_len = 24;
  return config;
}

data::Batch batch_of(int64_t rows, int64_t seq) {
  data::Batch b{rows, seq, {}, {}, std::vector<int32_t>(static_cast<size_t>(rows * seq), 0)};
  for (int64_t i = 0; i < rows * seq; ++i) {
    b.inputs.push_back(static_cast<int32_t>(i * i * 7 % 47));
    b.targets.push_back(static_cast<int32_t>(i * 11 % 47));
    if (i % seq == seq - 1) b.document_starts[static_cast<size_t>(i)] = static_cast<int32_t>(seq - 1);
  }
  return b;
}

using Traffic = std::map<std::string, comm::AxisTraffic>;

// Of the second step, by rank.
std::vector<Traffic> trained(const Layout& layout) {
  const auto config = config_of(layout);
  std::vector<Traffic> all(static_cast<size_t>(layout.ranks));
  comm::run_ranks(layout.ranks, [&](comm::World& world) {
    mesh::Groups groups(world, config.parallel);
    train::TrainingSetup setup{.model = config.model, .optimizer = config.optimizer, .parallel = config.parallel, .precision = "fp64"};
    setup.recompute = models::recompute_from_name(config.train.recompute);
    setup.microbatch = config.train.microbatch_size;
    train::ParallelModel model(setup, groups);
    const auto batch = batch_of(config.train.batch_size / groups.mesh().size(mesh::Axis::data), config.data.seq_len);
    model.step().run(batch, 1e-3);
    const auto before = world.counters().totals();
    EXPECT_FALSE(model.step().run(batch, 1e-3).skipped);
    auto& own = all[static_cast<size_t>(world.rank())];
    for (auto [axis, traffic] : world.counters().totals()) {
      if (const auto found = before.find(axis); found != before.end()) {
        traffic.calls -= found->second.calls;
        traffic.sent_bytes -= found->second.sent_bytes;
        traffic.received_bytes -= found->second.received_bytes;
      }
      if (traffic.calls > 0) own[axis] = traffic;
    }
  });
  return all;
}

Traffic traced(const Layout& layout, int rank) {
  Traffic sums;
  for (const auto& c : trace_step({.config = config_of(layout), .rank = rank, .world = layout.ranks}).trace.communications) {
    auto& sum = sums[c.axis];
    ++sum.calls;
    sum.sent_bytes += c.sent_bytes;
    sum.received_bytes += c.received_bytes;
  }
  return sums;
}

std::string text_of(const Traffic& traffic) {
  std::string text;
  for (const auto& [axis, t] : traffic)
    text += fmt::format("{}: {} calls, {} sent, {} received; ", axis, t.calls, t.sent_bytes, t.received_bytes);
  return text;
}

std::string name_of(const testing::TestParamInfo<Layout>& info) {
  const auto& p = info.param.parallel;
  auto name = fmt::format("{}_{}_{}_ranks_zero{}", info.index, info.param.family, info.param.ranks, p.zero);
  for (const auto& [axis, size] : {std::pair{"pipeline", p.pipeline},
                                   {"context", p.context},
                                   {"tensor", p.tensor},
                                   {"tsp", p.tensor_sequence},
                                   {"expert", p.expert},
                                   {"expert_tensor", p.expert_tensor}})
    if (size > 1) name += fmt::format("_{}{}", axis, size);
  if (p.context > 1) name += "_" + p.context_method + "_" + p.state_method;
  return name + "_" + info.param.optimizer + (info.param.spread ? "" : "_repeated");
}

class StepTraceTraffic : public testing::TestWithParam<Layout> {};

TEST_P(StepTraceTraffic, is_that_of_real_ranks) {
  const auto& layout = GetParam();
  if (layout.by_night && !base::tests_run_at_night()) GTEST_SKIP() << "by day its parts are in other layouts";
  const auto real = trained(layout);
  for (const int rank : {0, layout.ranks - 1})
    EXPECT_EQ(text_of(traced(layout, rank)), text_of(real[static_cast<size_t>(rank)])) << "rank " << rank;
}

std::vector<Layout> all_layouts() {
  using P = mesh::ParallelConfig;
  std::vector<Layout> all;
  for (const std::string family : {"llama", "zaya1", "linear_llama"}) {
    for (const int64_t zero : {0, 1, 2, 3}) all.push_back({.parallel = P{.zero = zero}, .ranks = 2, .family = family, .microbatch = 2});
    all.push_back({.parallel = P{.tensor = 2, .zero = 1}, .ranks = 4, .family = family, .recompute = "full"});
  }
  for (const std::string family : {"llama", "zaya1"}) {
    all.push_back({.parallel = P{.tensor_sequence = 2, .zero = 1}, .ranks = 4, .family = family, .recompute = "selective"});
    for (const char* method : {"ring", "allgather", "ulysses"}) {
      P p{.context = 2};
      p.context_method = method;
      all.push_back({.parallel = p, .ranks = 4, .family = family});
    }
    for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero_bubble"}) {
      P p{.pipeline = 2};
      p.pipeline_schedule = schedule;
      p.pipeline_chunks = schedule == std::string("interleaved") ? 2 : 1;
      all.push_back({.parallel = p, .ranks = 4, .family = family, .microbatch = 3});
    }
  }
  for (const char* states : {"lasp2", "lasp1", "zeco"}) {
    P p{.context = 2};
    p.context_method = "allgather", p.context_order = "contiguous", p.state_method = states;
    all.push_back({.parallel = p, .ranks = 2, .family = "linear_llama", .linear = "scalar_gate"});
  }
  all.push_back({.parallel = P{.expert = 2}, .ranks = 2, .family = "zaya1"});
  all.push_back({.parallel = P{.tensor = 2, .sequence_parallel = false}, .ranks = 2});
  // Matrices that ZeRO, an axis or both cut, worked on by all that have a part or by one of them: by day every other.
  for (const bool spread : {true, false})
    for (const std::string family : {"llama", "zaya1"})
      for (const int64_t zero : {0, 1, 2, 3}) {
        const auto add = [&](P parallel, int ranks) {
          parallel.zero = zero;
          const bool by_night = (all.size() % 2 == 0) == spread;
          all.push_back({.parallel = parallel, .ranks = ranks, .family = family, .optimizer = "muon", .spread = spread, .by_night = by_night});
        };
        add({}, 3);
        add({.tensor = 2}, 4);
        add({.tensor_sequence = 2}, 4);
        if (family == "zaya1") add({.expert = 2}, 4), add({.expert = 2, .expert_tensor = 2}, 4);
      }
  all.push_back({.parallel = P{.pipeline = 2}, .ranks = 4, .optimizer = "muon", .microbatch = 3, .spread = true});
  return all;
}

INSTANTIATE_TEST_SUITE_P(, StepTraceTraffic, testing::ValuesIn(all_layouts()), name_of);

TEST(StepTrace, has_the_models_flops) {
  for (const std::string family : {"llama", "linear_llama"}) {
    auto config = config_of({.parallel = {}, .ranks = 1, .family = family});
    config.train.precision = "bf16";
    config.data.reset_documents = false;
    const auto step = trace_step({.config = config, .target = device::Target::cpu});
    const auto model = models::create_model(config.model);
    const double expected = model->training_flops_per_token(config.data.seq_len) * static_cast<double>(step.tokens);
    // The embedding's first layer needs no gradient of its input; gates' projections and norms are small.
    EXPECT_NEAR(step.trace.flops() / expected, 1, 0.02) << family;
  }
}

TEST(StepTrace, names_what_lives_at_the_peak) {
  const auto step = trace_step({.config = config_of({.parallel = {}, .ranks = 1})});
  const auto names = step.peak_by_name();
  int64_t sum = 0;
  for (const auto& [name, bytes] : names) sum += bytes;
  EXPECT_EQ(sum, step.trace.peak_bytes);
  EXPECT_EQ(names.at("weights"), 8 * step.parameters);
  EXPECT_EQ(names.at("gradients"), 8 * step.parameters);
  EXPECT_GE(names.at("optimizer"), 2 * 8 * step.parameters);  // the moments of fp64 weights, which are their own masters
  EXPECT_TRUE(names.contains("layer/attention")) << testing::PrintToString(names);
}

TEST(StepTrace, sees_every_phase) {
  auto config = config_of({.parallel = {}, .ranks = 1});
  config.train.phases.resize(2);
  config.train.phases[0].steps = config.train.phases[1].steps = 1;
  config.train.phases[1].seq_len = 48;
  const auto first = trace_step({.config = config}), second = trace_step({.config = config, .phase = 1});
  EXPECT_EQ(second.tokens, 2 * first.tokens);
  EXPECT_GT(second.trace.peak_bytes, first.trace.peak_bytes);
  EXPECT_THROW(trace_step({.config = config, .phase = 2}), std::exception);
}

TEST(StepTrace, counts_the_kernels_of_its_target) {
  auto config = config_of({.parallel = {}, .ranks = 1});
  config.train.precision = "bf16";
  const auto kernels = [&](device::Target target) {
    return trace_json(trace_step({.config = config, .target = target}), false)["kernels"];
  };
  EXPECT_TRUE(kernels(device::Target::cpu).contains("attention.backward"));
  EXPECT_FALSE(kernels(device::Target::gpu).contains("attention.backward"));
}

TEST(StepTrace, more_load_on_a_ranks_experts_is_more_work) {
  const auto config = config_of({.parallel = mesh::ParallelConfig{.expert = 2}, .ranks = 2, .family = "zaya1"});
  EXPECT_GT(trace_step({.config = config, .world = 2, .expert_load = 2}).trace.flops(),
            trace_step({.config = config, .world = 2}).trace.flops());
}

TEST(StepTrace, refuses_what_cannot_be) {
  auto config = config_of({.parallel = {}, .ranks = 1});
  config.parallel.tensor = 5;
  EXPECT_THROW(trace_step({.config = config, .world = 5}), std::exception);
  EXPECT_THROW(trace_step({.config = config_of({.parallel = {}, .ranks = 2}), .rank = 2, .world = 2}), std::exception);
}

TEST(StepTrace, is_shown_to_people_and_programs) {
  const auto step = trace_step({.config = config_of({.parallel = mesh::ParallelConfig{.tensor = 2}, .ranks = 2}), .world = 2});
  const auto text = trace_text(step, 5);
  for (const auto* word : {"tensor 2", "forward", "backward", "optimizer", "at the peak", "all_gather", "aten::mm"})
    EXPECT_THAT(text, testing::HasSubstr(word));
  const auto json = trace_json(step, true);
  EXPECT_EQ(json["trace"].size(), step.trace.operations.size());
  EXPECT_EQ(json["peak_bytes"], step.trace.peak_bytes);
  schedule::Cluster cluster;
  cluster.name = "round", cluster.memory_bytes_per_s = 1e12;
  cluster.node.bytes_per_s = 1e11;
  cluster.compute.push_back({.dtype = "fp64", .gemm_flops_per_s = 1e13});
  const auto chrome = nlohmann::json::parse(chrome_trace(step, cluster, "fp64"));
  EXPECT_GT(chrome["traceEvents"].size(), step.trace.operations.size());
}

}  // namespace
}  // namespace ingot::plan
