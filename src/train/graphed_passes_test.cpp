// Passes as graphs, on the emulated device: the same losses, gradients, counts and weights to the last bit as passes that run as they are,
// whatever batches bring; what cannot be captured is said.
#include "train/graphed_passes.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/world.h"
#include "device/virtual_device.h"
#include "train/parallel_model.h"

namespace ingot::train {
namespace {

constexpr int64_t kSeq = 32, kRows = 6;

struct Run {
  std::string family = "llama", optimizer = "adamw", precision = "bf16";
  models::Recompute recompute = models::Recompute::none;
  int64_t microbatch = 2, zero = 1;
  int ranks = 1;
  int64_t mtp = 0;
};

TrainingSetup setup_of(const Run& run, bool uses_graphs, int rank) {
  models::ModelConfig c;
  c.family = run.family;
  c.layers = 3, c.hidden = 32, c.vocab_size = 48, c.heads = 4, c.kv_heads = 2, c.head_dim = 8, c.ffn = 48;
  c.experts = 4, c.expert_ffn = 16, c.router_hidden = 8, c.rope_fraction = 0.5;
  c.layer_pattern = "LNL", c.linear_attention = "gated_delta", c.feature_map = "l2";
  c.mtp_layers = run.mtp;
  TrainingSetup setup{.model = c, .precision = run.precision, .device = device::emulated_device(rank), .recompute = run.recompute};
  setup.optimizer.name = run.optimizer;
  setup.uses_graphs = uses_graphs;
  setup.microbatch = run.microbatch;
  setup.parallel.zero = run.zero;
  setup.parallel.bucket_mib = 0.01;
  return setup;
}

/// `targets_left_out`: a batch's loss is scaled by the number of the others. `documents`: begins of documents in each row.
data::Batch batch_of(int64_t step, int rank, int64_t targets_left_out, int64_t documents) {
  data::Batch b{.batch = kRows, .seq = kSeq};
  for (int64_t row = 0; row < kRows; ++row) b.sources.push_back(static_cast<int32_t>((row + step) % 2));
  for (int64_t i = 0; i < kRows * kSeq; ++i) {
    b.inputs.push_back(static_cast<int32_t>((i * 7 + step * 5 + rank) % 47));
    b.targets.push_back(i < targets_left_out ? -100 : static_cast<int32_t>((i * 11 + step) % 47));
    const int64_t length = documents > 0 ? (kSeq + documents - 1) / documents : kSeq;
    b.document_starts.push_back(static_cast<int32_t>(i % kSeq / length * length));
  }
  return b;
}

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::vector<std::vector<int64_t>>> expert_tokens;
  std::vector<at::Tensor> weights;
  int64_t replays = 0;
};

struct BatchKind {
  int64_t targets_left_out = 0, documents = 0;
};

Trained train(const Run& run, const std::vector<BatchKind>& kinds, bool uses_graphs) {
  Trained result;
  comm::run_ranks(run.ranks, [&](comm::World& world) {
    const auto setup = setup_of(run, uses_graphs, world.rank());
    mesh::Groups groups(world, setup.parallel);
    ParallelModel model(setup, groups);
    model.step().tell_sources_apart(2);
    for (size_t step = 0; step < kinds.size(); ++step) {
      const auto batch = batch_of(static_cast<int64_t>(step), world.rank(), kinds[step].targets_left_out, kinds[step].documents);
      const auto of_step = model.step().run(batch, 1e-2);
      if (world.rank() > 0) continue;
      result.losses.push_back(of_step.loss);
      result.norms.push_back(of_step.grad_norm);
      for (const auto& source : of_step.sources) result.losses.push_back(source.loss);
      result.expert_tokens.push_back(of_step.expert_tokens);
    }
    int64_t targets = 0;
    const double validated = model.step().evaluate(batch_of(99, world.rank(), 0, 0), targets);
    if (world.rank() > 0) return;
    result.losses.push_back(validated);
    if (auto* graphs = model.step().graphs()) result.replays = graphs->replays();
    if (model.buckets()) return;
    for (const auto& p : model.model().parameters().all()) result.weights.push_back(p->value.detach().cpu());
  });
  return result;
}

void expect_the_same(const Run& run, const std::vector<BatchKind>& kinds, int64_t replays) {
  SCOPED_TRACE(fmt::format("{} {} {} recompute {} microbatch {} zero {} ranks {}", run.family, run.optimizer, run.precision,
                           static_cast<int>(run.recompute), run.microbatch, run.zero, run.ranks));
  const auto expected = train(run, kinds, false), found = train(run, kinds, true);
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
  EXPECT_EQ(found.expert_tokens, expected.expert_tokens);
  for (size_t i = 0; i < expected.weights.size(); ++i) EXPECT_TRUE(found.weights[i].equal(expected.weights[i])) << i;
  EXPECT_EQ(found.replays, replays);
  EXPECT_EQ(expected.replays, 0);
}

const std::vector<BatchKind> kSixAlike(6);

// The first microbatch of a step writes gradients, the other two add to them: two shapes, the second of which is captured in the second
// step.
constexpr int64_t kReplaysOfSix = 4 + 2 * 5;

TEST(GraphedPasses, are_those_of_a_dense_model_a_mixture_and_a_hybrid) {
  for (const auto* family : {"llama", "zaya1", "linear_llama"})
    for (const auto recompute : {models::Recompute::none, models::Recompute::full})
      expect_the_same({.family = family, .recompute = recompute}, kSixAlike, kReplaysOfSix);
  expect_the_same({.optimizer = "muon", .precision = "fp32"}, kSixAlike, kReplaysOfSix);
  expect_the_same({.optimizer = "muon", .precision = "fp8_block"}, kSixAlike, kReplaysOfSix);
}

TEST(GraphedPasses, predict_further_tokens_too) { expect_the_same({.mtp = 1}, kSixAlike, kReplaysOfSix); }

TEST(GraphedPasses, of_a_whole_batch_are_one_graph) { expect_the_same({.microbatch = 0}, kSixAlike, 4); }

TEST(GraphedPasses, take_documents_as_they_come) {
  // Up to 8 a row, of two rows, fill up to the same 16; 16 a row and none are shapes of their own, seen once.
  expect_the_same({}, {{0, 2}, {0, 5}, {0, 2}, {0, 7}, {0, 3}, {0, 16}, {0, 1}, {0, 8}}, 4 + 2 * 5);
}

TEST(GraphedPasses, of_another_scale_run_as_they_are) {
  // The third is captured, the fourth and the sixth run as they are, the seventh is captured anew.
  const std::vector<BatchKind> kinds{{0, 0}, {0, 0}, {0, 0}, {7, 0}, {0, 0}, {9, 0}, {9, 0}, {9, 0}};
  expect_the_same({.microbatch = 0}, kinds, 2 + 2);
  // Of several passes of a step none is captured when each step has a scale of its own.
  expect_the_same({}, {{1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}}, 0);
}

TEST(GraphedPasses, of_replicas_are_those_between_the_first_and_the_last) {
  for (const int64_t zero : {0, 1}) expect_the_same({.family = "zaya1", .microbatch = 1, .zero = zero, .ranks = 2}, kSixAlike, 4 * 5);
}

TEST(GraphedPasses, say_what_they_cannot_be) {
  // The host asks for the rows of each expert.
  try {
    train({.family = "zaya1", .precision = "fp32"}, kSixAlike, true);
    FAIL() << "nothing was refused";
  } catch (const base::ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("train.gpu_graphs"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("the host waits"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ingot::train
