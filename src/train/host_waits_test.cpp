// Where the host waits for the device in a training step: docs/devices.md has the same list, with the reasons. A GPU that is waited for
// runs dry, so a new line here wants a reason.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "comm/world.h"
#include "device/tracer.h"
#include "device/virtual_device.h"
#include "train/parallel_model.h"

namespace ingot::train {
namespace {

constexpr int64_t kLayers = 3, kSeq = 16, kRows = 4;

models::ModelConfig model_of(const std::string& family) {
  models::ModelConfig c;
  c.family = family;
  c.layers = kLayers, c.hidden = 32, c.vocab_size = 48, c.heads = 4, c.kv_heads = 2, c.head_dim = 8, c.ffn = 48;
  c.experts = 4, c.expert_ffn = 16, c.router_hidden = 8, c.rope_fraction = 0.5;
  return c;
}

data::Batch batch_of(int64_t rows) {
  data::Batch b{.batch = rows, .seq = kSeq};
  for (int64_t i = 0; i < rows * kSeq; ++i) {
    b.inputs.push_back(static_cast<int32_t>(i * 7 % 47));
    b.targets.push_back(static_cast<int32_t>(i * 11 % 47));
    b.document_starts.push_back(0);
  }
  return b;
}

// How often the host waits in each scope of a step; of an operation outside of all scopes its name.
using Waits = std::map<std::string, int>;

Waits waits_of(const device::Trace& trace) {
  Waits waits;
  for (const auto& access : trace.host_accesses) {
    if (!access.waits) continue;
    auto path = trace.path_of(access.scope);
    for (int64_t layer = 0; layer < kLayers; ++layer)
      if (const auto name = fmt::format("layer {}", layer); path.find(name) != std::string::npos)
        path.replace(path.find(name), name.size(), "layer");
    ++waits[fmt::format("{}: {}", path, trace.names[static_cast<size_t>(access.name)])];
  }
  return waits;
}

struct Step {
  std::string family = "llama", optimizer = "muon";
  mesh::ParallelConfig parallel = {};
  int ranks = 1;
  int64_t microbatch = 2;
  models::Recompute recompute = models::Recompute::none;
  std::string precision = "fp32";
  bool offloads = false, checks_replicas = false;
};

Waits waits_in(const Step& step) {
  Waits waits;
  comm::run_ranks(step.ranks, [&](comm::World& world) {
    mesh::Groups groups(world, step.parallel);
    TrainingSetup setup{.model = model_of(step.family), .parallel = step.parallel, .precision = step.precision};
    setup.device = device::emulated_device(world.rank());
    setup.optimizer.name = step.optimizer;
    setup.recompute = step.recompute;
    setup.offloads_activations = step.offloads;
    setup.microbatch = step.microbatch;
    setup.parallel.bucket_mib = 0.01;
    ParallelModel model(setup, groups);
    const auto batch = batch_of(kRows);
    model.step().run(batch, 1e-3);
    auto* const check = step.checks_replicas ? model.replica_check() : nullptr;
    device::Tracer tracer(setup.device);
    model.step().run(batch, 1e-3, check);
    if (check) check->compare(2);
    const auto trace = tracer.finish();
    if (world.rank() == 0) waits = waits_of(trace);
  });
  return waits;
}

// Whatever the number of layers, parameters, microbatches and ranks: what ranks tell each other of them is on the host already.
const Waits kOfAStep = {{": copy to the host", 1}, {"gradient_norm: copy to the host", 1}};

Waits joined(Waits a, const Waits& b) {
  for (const auto& [where, count] : b) a[where] += count;
  return a;
}

TEST(HostWaits, of_a_dense_step_are_its_loss_and_the_norm_of_its_gradient) {
  EXPECT_EQ(waits_in({}), kOfAStep);
  EXPECT_EQ(waits_in({.optimizer = "adamw", .microbatch = 1}), kOfAStep);
  EXPECT_EQ(waits_in({.recompute = models::Recompute::full}), kOfAStep);
  EXPECT_EQ(waits_in({.recompute = models::Recompute::full, .offloads = true}), kOfAStep);
}

TEST(HostWaits, of_ranks_are_those_of_one) {
  for (const int64_t zero : {0, 2, 3}) EXPECT_EQ(waits_in({.parallel = mesh::ParallelConfig{.zero = zero}, .ranks = 2}), kOfAStep) << zero;
  EXPECT_EQ(waits_in({.parallel = mesh::ParallelConfig{.tensor = 2}, .ranks = 2}), kOfAStep);
}

TEST(HostWaits, of_compared_replicas_are_their_digests_once_a_step) {
  const auto expected = joined(kOfAStep, {{"check_replicas: copy to the host", 1}});
  for (const int64_t zero : {0, 1, 3})
    for (const char* precision : {"fp32", "bf16"})
      EXPECT_EQ(waits_in({.parallel = mesh::ParallelConfig{.zero = zero}, .ranks = 2, .precision = precision, .checks_replicas = true}),
                expected)
          << zero << " " << precision;
}

TEST(HostWaits, of_experts_are_their_rows_once_a_layer_and_microbatch_and_the_counts_once_a_step) {
  constexpr int kMicrobatches = 2, kRouted = kLayers * kMicrobatches;
  const std::string forward = "forward/layer/", again = "RecomputeFunction/backward/RecomputeFunction/recompute/",
                    rows = "experts/ExpertsFunction: copy to the host";
  const Waits counts = {{": copy to the host", 1}};
  EXPECT_EQ(waits_in({.family = "zaya1"}), joined(joined(kOfAStep, counts), {{forward + rows, kRouted}}));
  EXPECT_EQ(waits_in({.family = "zaya1", .recompute = models::Recompute::full}),
            joined(joined(kOfAStep, counts), {{forward + "RecomputeFunction/" + rows, kRouted}, {forward + again + rows, kRouted}}));
  // Grouped GEMMs are told by the device.
  EXPECT_EQ(waits_in({.family = "zaya1", .precision = "bf16"}), joined(kOfAStep, counts));
  EXPECT_EQ(waits_in({.family = "zaya1", .recompute = models::Recompute::full, .precision = "bf16"}), joined(kOfAStep, counts));
  // In FP8 they are, too, in every block but the first and the last; what is emulated is multiplied expert by expert.
  EXPECT_EQ(waits_in({.family = "zaya1", .precision = "fp8"}), joined(kOfAStep, counts));
  EXPECT_EQ(waits_in({.family = "zaya1", .recompute = models::Recompute::full, .precision = "fp8"}), joined(kOfAStep, counts));
  EXPECT_EQ(waits_in({.family = "zaya1", .precision = "fp8_block"}), joined(joined(kOfAStep, counts), {{forward + rows, kMicrobatches}}));
  // How many rows come from elsewhere the ranks tell each other on the host.
  EXPECT_EQ(waits_in({.family = "zaya1", .parallel = mesh::ParallelConfig{.expert = 2}, .ranks = 2}),
            joined(joined(kOfAStep, counts), {{forward + rows, kRouted}}));
}

}  // namespace
}  // namespace ingot::train
