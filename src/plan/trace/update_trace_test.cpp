// What plans take from the traces of a pass and of an update against the trace of the whole step, for every ZeRO stage.
#include "plan/trace/update_trace.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "mesh/mesh.h"
#include "optim/dion.h"
#include "optim/update_rule.h"
#include "parallel/buckets.h"
#include "plan/memory.h"
#include "plan/priced_pass.h"
#include "plan/run_shape.h"
#include "plan/trace/step_trace.h"
#include "train/parallel_model.h"

namespace ingot::plan {
namespace {

constexpr int64_t kMicrobatches = 3;

struct Case {
  mesh::ParallelConfig parallel;
  int world;
  std::string family = "llama", optimizer = "adamw";
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const auto& p = info.param.parallel;
  return fmt::format("{}_{}_{}_zero{}_data{}_tensor{}_tsp{}_expert{}x{}_pipeline{}", info.index, info.param.family, info.param.optimizer,
                     p.zero, p.data, p.tensor, p.tensor_sequence, p.expert, p.expert_tensor, p.pipeline);
}

// Blocks that are large beside what a step keeps for its own book-keeping.
train::RunConfig config_of(const Case& c) {
  train::RunConfig config;
  auto& m = config.model;
  m.family = c.family;
  m.layers = 8, m.hidden = 128, m.vocab_size = 512, m.heads = 8, m.kv_heads = 4, m.head_dim = 32, m.ffn = 512;
  m.experts = 4, m.expert_ffn = 256, m.router_hidden = 32, m.rope_fraction = 0.5;
  m.force_balance = true;
  config.parallel = c.parallel;
  config.parallel.bucket_mib = 0.25;  // a block and more
  config.optimizer.name = c.optimizer;
  config.train.precision = "bf16";
  config.train.microbatch_size = 2;
  config.train.batch_size = 2 * kMicrobatches * c.parallel.data;
  config.train.steps = 2;
  config.data.seq_len = 64;
  config.data.reset_documents = false;
  return config;
}

struct Planned {
  std::unique_ptr<models::Model> part;
  RunShape run;
};

Planned planned(const train::RunConfig& config, int world) {
  const mesh::Mesh mesh(config.parallel, 0, world);
  Planned p{models::create_model(config.model, train::layout_of(mesh, config.parallel, config.model)), {}};
  p.run.batch = 2 * kMicrobatches, p.run.microbatch = 2, p.run.seq = config.data.seq_len;
  p.run.precision = config.train.precision, p.run.optimizer = config.optimizer;
  p.run.target = device::Target::cpu, p.run.expert_load = 1;
  p.run.replicas = config.parallel.data, p.run.zero = config.parallel.zero;
  p.run.bucket_bytes = static_cast<int64_t>(config.parallel.bucket_mib * (1 << 20));
  return p;
}

int64_t sent(const UpdateTrace::Communications& all) {
  int64_t bytes = 0;
  for (const auto& c : all) bytes += c.sent_bytes;
  return bytes;
}

int64_t sent_in(const StepTrace& step, const char* scope) {
  int64_t bytes = 0;
  for (const auto& c : step.trace.communications)
    if (step.trace.enclosing(c.scope, scope) >= 0) bytes += c.sent_bytes;
  return bytes;
}

class PlanAgainstStep : public testing::TestWithParam<Case> {};

TEST_P(PlanAgainstStep, memory_is_that_of_the_whole_step) {
  const auto& c = GetParam();
  const auto config = config_of(c);
  const auto step = trace_step({.config = config, .world = c.world, .target = device::Target::cpu});
  const auto p = planned(config, c.world);
  const auto memory = predict_memory(*p.part, p.run, 0);
  const auto ratio = [](int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); };
  EXPECT_NEAR(ratio(memory.state_bytes(), step.rest_bytes), 1, 0.005) << memory.state_bytes() << " " << step.rest_bytes;
  EXPECT_NEAR(ratio(memory.state_bytes() + memory.working_bytes(), step.trace.peak_bytes), 1, 0.01)
      << memory.state_bytes() << " + " << memory.forward_backward_bytes << " or " << memory.update_bytes << ", "
      << step.trace.peak_bytes - step.rest_bytes;
  PassTraces traces;
  EXPECT_LE(least_bytes(*p.part, p.run, traces), memory.state_bytes() + memory.working_bytes());
}

TEST_P(PlanAgainstStep, gradients_weights_and_matrices_are_sent_as_in_the_whole_step) {
  const auto& c = GetParam();
  const auto config = config_of(c);
  const auto step = trace_step({.config = config, .world = c.world, .target = device::Target::cpu});
  const auto p = planned(config, c.world);
  PassTraces traces;
  const auto& update = traces.update_of(*p.part, p.run.update());
  int64_t gathers = 0;
  if (c.parallel.zero >= 3)
    traces.of(*p.part, p.run.pass_of(*p.part)).visit(span_of(*p.part), [&](const BlockPass& block) {
      gathers += sent(block.forward.gathers) + sent(block.backward.gathers);
    });
  EXPECT_EQ((c.parallel.zero >= 2 ? kMicrobatches : 1) * sent(update.sums), sent_in(step, parallel::Buckets::kReduceScope));
  EXPECT_EQ(sent(update.gathers) + kMicrobatches * gathers, sent_in(step, parallel::Buckets::kGatherScope));
  EXPECT_EQ(sent(update.update), sent_in(step, "muon"));
}

// By what its paper says a matrix takes: four products with factors of low rank, and one basis made orthonormal.
TEST(TracedRules, dions_is_there_matrix_by_matrix) {
  const auto p = planned(config_of({{}, 1, "llama", "dion"}), 1);
  PassTraces traces;
  const auto& update = traces.update_of(*p.part, p.run.update());
  double flops = 0, expected = 0;
  int64_t bases = 0, matrices = 0;
  const optim::UpdateRules rules(p.run.optimizer);
  for (const auto& parameter : p.part->parameters().all()) {
    if (rules.of(*parameter).predicted_as() != "dion") continue;
    const int64_t rows = parameter->shape[0], cols = parameter->shape[1];
    expected += 4 * 2 * static_cast<double>(rows * cols * optim::Dion::rank_of(p.run.optimizer, rows, cols));
    ++matrices;
  }
  for (const auto& op : update.operations) {
    EXPECT_EQ(op.kind, WorkKind::muon) << op.name;
    if (matmul_sizes(op)) flops += static_cast<double>(op.calls) * op.flops;
    if (op.name == "aten::linalg_qr") bases += op.calls;
  }
  EXPECT_EQ(bases, matrices);
  EXPECT_DOUBLE_EQ(flops, expected);
  EXPECT_TRUE(traces.update_of(*p.part, planned(config_of({{}, 1, "llama", "muon"}), 1).run.update()).operations.empty());
}

TEST(TracedRules, other_settings_are_other_updates) {
  auto run = planned(config_of({{}, 1}), 1);
  PassTraces traces;
  const auto bytes = [&] { return traces.update_of(*run.part, run.run.update()).optimizer_bytes; };
  const int64_t fp32 = bytes();
  run.run.optimizer.moments_dtype = "bf16";
  EXPECT_LT(bytes(), fp32);
}

// Against the state that a rank which is there holds, region by region; and all stages together hold what one would.
TEST(SavedBytes, are_those_of_the_optimizers_state) {
  for (const char* family : {"llama", "zaya1"})
    for (const char* optimizer : {"adamw", "muon", "normuon", "dion"}) {
      auto config = config_of({{}, 1, family, optimizer});
      config.model.tie_embeddings = false;  // else both ends of the depth hold them
      const auto world = comm::World::join({}, false, {});
      mesh::Groups groups(*world, config.parallel);
      train::ParallelModel held(
          {.model = config.model, .optimizer = config.optimizer, .parallel = config.parallel, .precision = config.train.precision}, groups);
      int64_t bytes = 0;
      for (const auto& slice : held.optimizer().state())
        for (const auto& region : slice.regions) bytes += tensor::element_count(region.box.extent) * slice.flat.element_size();

      PassTraces traces;
      const auto saved = [&](const mesh::ParallelConfig& parallel, int rank, int size, int64_t replicas) {
        const mesh::Mesh mesh(parallel, rank, size);
        const auto part = models::create_model(config.model, train::layout_of(mesh, parallel, config.model));
        return predict_saved_bytes(
            *part,
            {.precision = config.train.precision, .optimizer = config.optimizer, .target = device::Target::cpu, .replicas = replicas},
            traces);
      };
      EXPECT_EQ(saved({}, 0, 1, 1), bytes) << family << ", " << optimizer;
      EXPECT_EQ(saved({.pipeline = 2}, 0, 2, 1) + saved({.pipeline = 2}, 1, 2, 1), bytes) << family << ", " << optimizer;
      EXPECT_NEAR(static_cast<double>(saved({.data = 2, .tensor = 2}, 0, 4, 2)), static_cast<double>(bytes) / 4, 1) << family;
    }
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  using P = mesh::ParallelConfig;
  for (const char* optimizer : {"adamw", "muon"})
    for (const int64_t zero : {0, 1, 2, 3}) {
      const auto add = [&](P p, const std::string& family) {
        p.zero = zero;
        all.push_back({p, static_cast<int>(p.pipeline * p.data * p.tensor * p.tensor_sequence), family, optimizer});
      };
      add({.data = 4}, "llama");
      add({.data = 2, .tensor = 2}, "llama");
      add({.data = 4}, "zaya1");
      add({.data = 4, .expert = 2}, "zaya1");
      add({.data = 4, .expert = 2, .expert_tensor = 2}, "zaya1");
      add({.data = 2, .tensor_sequence = 2}, "zaya1");
    }
  return all;
}

INSTANTIATE_TEST_SUITE_P(, PlanAgainstStep, testing::ValuesIn(all_cases()), name_of);

}  // namespace
}  // namespace ingot::plan
