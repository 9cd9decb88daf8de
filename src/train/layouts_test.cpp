// The same model on every layout of ranks (test_layouts.h): gradients of every parameter, 2 losses (20 at night) and the final weights and
// moments are those of one rank alone, and the same bits in every run; in each step all copies of a weight are the same (replica_check.h).
// Ranks are threads. By day every other family has a layout, at night each. Top-1 routing is discontinuous, so the mixture of experts is
// compared in fp64, and in fp32 with the choices that one rank's routers made; the dense model in both.
//
// Some layouts run on emulated devices too, one for each rank, for two steps: by day each family and each part of a layout at least once.
// With ./scripts/test --device emulated all layouts do, for all steps. The one rank that they are compared with computes on the CPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/test_night.h"
#include "comm/world.h"
#include "device/test_device.h"
#include "train/parallel_model.h"
#include "train/test_layouts.h"

namespace ingot::train {
namespace {

constexpr int64_t kRows = 12;
constexpr size_t kSources = 4;  // the last gives nothing

int64_t all_steps() { return base::tests_run_at_night() ? 20 : 2; }

// Packed documents of uneven lengths, some positions without targets; other tokens in every step.
data::Batch batch_of(int64_t step, int64_t first_row, int64_t rows, int64_t seq) {
  data::Batch b{.batch = rows, .seq = seq};
  for (int64_t row = first_row; row < first_row + rows; ++row) {
    b.sources.push_back(static_cast<int32_t>((row * row + step) % 5 % 3));
    int32_t start = 0;
    for (int64_t i = 0; i < seq; ++i) {
      const int64_t n = (step * kRows + row) * seq + i;
      if (i > 0 && (n * 2654435761 >> 7) % 6 == 0) start = static_cast<int32_t>(i);
      b.inputs.push_back(static_cast<int32_t>(n * n * 7 % 47));
      b.targets.push_back(n % 11 == 4 ? -100 : static_cast<int32_t>((n * n * 7 + n) % 47));
      b.document_starts.push_back(start);
    }
  }
  return b;
}

// The same rows as pairs of answers: of each seven twelfths and two sixths, and padding.
data::Batch pairs_of(data::Batch b) {
  b.pair_starts.assign(b.inputs.size(), -1);
  b.reference_margins.assign(b.inputs.size(), std::nan(""));
  const int64_t sixth = b.seq / 6, starts[] = {0, 2 * sixth, 3 * sixth, 4 * sixth, b.seq - 1};
  for (int64_t row = 0; row < b.batch; ++row)
    for (size_t document = 0; document < 5; ++document)
      for (int64_t i = starts[document]; i < (document < 4 ? starts[document + 1] : b.seq); ++i) {
        const auto at = static_cast<size_t>(row * b.seq + i);
        b.document_starts[at] = static_cast<int32_t>(starts[document]);
        if (i + 1 == starts[std::min<size_t>(document + 1, 4)] || document == 4) b.targets[at] = -100;
        if (document < 4) b.pair_starts[at] = static_cast<int32_t>(starts[document / 2 * 2]);
        if (document % 2 == 0 && document < 4 && i == starts[document])
          b.reference_margins[at] = 0.1 * static_cast<double>(b.inputs[at] % 7) - 0.3;
      }
  return b;
}

// The same rows, each cut off somewhere, one behind another.
data::Batch variable_rows_of(const data::Batch& b) {
  data::Batch flat{.batch = b.batch, .seq = b.seq};
  flat.row_begins = {0};
  for (int64_t row = 0; row < b.batch; ++row) {
    const auto begin = static_cast<int32_t>(flat.row_begins.back());
    const int64_t length = 1 + (b.inputs[static_cast<size_t>(row * b.seq)] * 29 + 17) % b.seq;
    for (int64_t i = row * b.seq; i < row * b.seq + length; ++i) {
      const auto at = static_cast<size_t>(i);
      flat.inputs.push_back(b.inputs[at]);
      flat.targets.push_back(b.targets[at]);
      flat.document_starts.push_back(b.document_starts[at] + begin);
      if (b.pair_starts.empty()) continue;
      flat.pair_starts.push_back(b.pair_starts[at] < 0 ? -1 : b.pair_starts[at] + begin);
      flat.reference_margins.push_back(b.reference_margins[at]);
    }
    flat.row_begins.push_back(begin + length);
  }
  return flat;
}

data::Batch batch_for(const TestLayout& layout, int64_t step, int64_t first_row, int64_t rows) {
  auto batch = batch_of(step, first_row, rows, layout.seq);
  // Over ranks an encoder's rows are one document each.
  if (layout.encoder && layout.family == "linear_llama") std::fill(batch.document_starts.begin(), batch.document_starts.end(), 0);
  if (layout.pairs) batch = pairs_of(std::move(batch));
  return layout.variable ? variable_rows_of(batch) : batch;
}

// Whole tensors, put together from the slices of all ranks.
using State = std::map<std::string, at::Tensor>;

// Of each step and layer, int64 [kRows, seq].
using Choices = std::map<std::pair<int64_t, int64_t>, at::Tensor>;

struct Outcome {
  std::vector<double> losses, norms, balance;
  std::vector<std::vector<SourceLoss>> sources;
  State first, last;  // after one step, which shows every gradient, and after the last
  std::vector<std::vector<std::vector<int64_t>>> loads;
  double validation = 0;
  Choices choices;  // of one rank
};

void collect(const optim::Optimizer& optimizer, State& state, std::mutex& mutex) {
  const std::lock_guard lock(mutex);
  for (const auto& slice : optimizer.state()) {
    if (!slice.is_primary) continue;
    auto& whole = state[slice.name];
    if (!whole.defined()) whole = at::full(slice.shape, std::nan(""), slice.flat.options().device(at::kCPU));
    for (const auto& region : slice.regions) {
      auto box = whole;
      for (size_t d = 0; d < slice.shape.size(); ++d) box = box.narrow(static_cast<int64_t>(d), region.box.offset[d], region.box.extent[d]);
      EXPECT_TRUE(box.isnan().all().item<bool>()) << slice.name << " is saved twice";
      box.copy_(parallel::view_of(region, slice.flat));
    }
  }
}

// This rank's tokens of [rows, seq], of the rows given, in its order.
at::Tensor own_part(const at::Tensor& all, int64_t first_row, int64_t rows, const parallel::Layout& layout) {
  const auto own = layout.sequence.own_tokens(all.narrow(0, first_row, rows)).flatten();
  const auto& axis = layout.tensor;
  const auto share = axis.share(own.numel());
  return axis.shards_tokens ? own.slice(0, share.begin, share.end) : own;
}

Outcome train(const TestLayout& layout, int64_t steps = all_steps(), const Choices* replayed = nullptr, size_t sources = kSources) {
  Outcome outcome;
  std::mutex mutex;
  comm::run_ranks(layout.ranks, [&](comm::World& world) {
    mesh::Groups groups(world, layout.parallel);
    // Buckets of a fixed size, smaller than a layer: which rank owns what decides the last bits of the norm.
    TrainingSetup setup{.model = model_of(layout), .parallel = layout.parallel, .precision = layout.precision};
    if (layout.emulated) setup.device = device::emulated_device(world.rank());
    setup.optimizer.name = layout.optimizer;
    // In bf16, as is fastest with AMX, the last bits of a gradient in fp32 become some per mille of a direction.
    if (layout.precision == "fp32") setup.optimizer.newton_schulz_precision = "own";
    setup.optimizer.spread_orthogonalisation = layout.spread;
    setup.recompute = layout.recompute;
    setup.microbatch = layout.microbatch;
    if (!layout.balance.empty()) setup.routing_losses = {.balance = 0.5, .z = 0.1, .over = layers::balance_over_from_name(layout.balance)};
    setup.optimizer.clip = layout.clip;
    if (layout.is_special) setup.z_loss = 0.01;
    setup.optimizer.qk_clip = layout.qk_clip;
    if (layout.pairs) setup.preferences = {.beta = 0.5, .label_smoothing = 0.1};
    setup.parallel.bucket_mib = layout.bucket_mib;
    setup.is_reproducible = layout.reproducible;
    ParallelModel model(setup, groups);
    model.step().tell_sources_apart(sources);
    const int64_t share = kRows / groups.mesh().size(mesh::Axis::data);
    const int64_t first_row = share * groups.mesh().position(mesh::Axis::data), part = layout.microbatch ? layout.microbatch : share;
    for (int64_t step = 0; step < steps; ++step) {
      std::map<int64_t, int64_t> microbatches;  // that each layer has seen
      if (replayed)
        model.model().set_routing_replay([&, step](int64_t layer, const at::Tensor&) {
          return own_part(replayed->at({step, layer}), first_row + part * microbatches[layer]++, part, model.model().layout())
              .to(setup.device);
        });
      else if (layout.replayed)
        model.model().set_routing_replay([&, step](int64_t layer, const at::Tensor& choice) {
          return outcome.choices.emplace(std::pair(step, layer), choice.clone().view({kRows, layout.seq})), choice;
        });
      auto* const check = model.replica_check();
      const auto result = model.step().run(batch_for(layout, step, first_row, share), layout.replayed ? 1e-3 : 1e-2, check);
      if (check) check->compare(step + 1);
      model.model().set_routing_replay({});
      EXPECT_FALSE(result.skipped) << result.reason;
      if (step == 0) collect(model.optimizer(), outcome.first, mutex);
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) {
        outcome.losses.push_back(result.loss);
        outcome.norms.push_back(result.grad_norm);
        outcome.balance.push_back(result.balance_loss.value_or(0) + 1000 * result.router_z_loss.value_or(0) + result.mtp_loss.value_or(0) +
                                  result.draft_loss.value_or(0) + result.attention_max.value_or(0) + 10 * result.dpo_accuracy.value_or(0) +
                                  result.dpo_margin.value_or(0));
        outcome.loads.push_back(result.expert_tokens);
        outcome.sources.push_back(result.sources);
      } else if (outcome.losses.size() > static_cast<size_t>(step)) {
        EXPECT_EQ(result.loss, outcome.losses[static_cast<size_t>(step)]) << "rank " << world.rank();
      }
    }
    collect(model.optimizer(), outcome.last, mutex);
    int64_t targets = 0;
    const bool is_first = groups.mesh().position(mesh::Axis::data) == 0;  // the others have no sequences
    const double loss = model.step().evaluate(is_first ? batch_for(layout, 99, 0, 2) : data::Batch{}, targets);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) outcome.validation = loss;
  });
  return outcome;
}

double difference(const at::Tensor& a, const at::Tensor& b) { return ((a - b).abs().max() / (b.abs().max() + 1e-12)).item<double>(); }

void expect_same(const State& got, const State& expected, double tolerance, const char* when) {
  EXPECT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_FALSE(got.at(name).isnan().any().item<bool>()) << name << " has parts that nobody saves, " << when;
    EXPECT_LT(difference(got.at(name), tensor), tolerance) << name << " " << when;
  }
}

// The same as of one rank, and their mean by targets is the loss.
void expect_same_sources(const Outcome& got, const Outcome& expected, double tolerance) {
  for (size_t step = 0; step < got.losses.size(); ++step) {
    SCOPED_TRACE(step);
    ASSERT_EQ(got.sources[step].size(), expected.sources[step].size());
    double sum = 0, targets = 0;
    for (size_t s = 0; s < got.sources[step].size(); ++s) {
      const auto &one = got.sources[step][s], &other = expected.sources[step][s];
      EXPECT_EQ(one.targets, other.targets) << "source " << s;
      EXPECT_NEAR(one.loss, other.loss, tolerance * (1 + other.loss)) << "source " << s;
      sum += one.loss * static_cast<double>(one.targets), targets += static_cast<double>(one.targets);
    }
    if (targets > 0) {
      EXPECT_NEAR(sum / targets, got.losses[step], 1e-6);
    }
  }
}

// What one rank alone does, once for each kind of model.
const Outcome& alone(TestLayout layout) {
  static std::map<std::string, Outcome> known;
  layout.parallel = {.zero = 0};
  layout.ranks = 1;
  layout.emulated = false;
  layout.recompute = models::Recompute::none;
  if (layout.balance != "microbatch") layout.microbatch = 0;
  const auto key = fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", layout.balance, layout.kv_heads,
                               layout.top_k, fmt::join(layout.mixers, ","), fmt::join(layout.feed_forwards, ","), layout.replayed,
                               layout.family, model_of(layout).linear_attention, layout.precision, layout.optimizer, layout.tie,
                               layout.biases, layout.force_balance, layout.seq, layout.window, layout.is_special, layout.mtp, layout.lora,
                               layout.pairs, layout.encoder, layout.draft, layout.qk_clip, layout.longrope, layout.variable);
  if (!known.contains(key)) known.emplace(key, train(layout));
  return known.at(key);
}

class Layouts : public ::testing::TestWithParam<TestLayout> {};

TEST_P(Layouts, train_the_same_model) {
  auto layout = GetParam();
  if (layout.by_night && !base::tests_run_at_night()) GTEST_SKIP() << "by day its parts are in other layouts";
  layout.emulated = layout.emulated || device::tests_are_emulated();
  const auto& expected = alone(layout);
  const auto* choices = layout.replayed ? &expected.choices : nullptr;
  if (GetParam().emulated) {
    const auto got = train(layout, 2, choices);
    expect_same(got.first, expected.first, 1e-8, "after one step");
    for (size_t step = 0; step < 2; ++step) EXPECT_NEAR(got.losses[step] / expected.losses[step], 1, 1e-9) << "step " << step;
    expect_same_sources(got, expected, 1e-9);
    return;
  }
  const auto got = train(layout, all_steps(), choices);
  // Where a gradient is nearly nothing, its rounding decides which way AdamW steps: in fp32, and with the router's gradients, that shows.
  const bool is_exact = layout.precision == "fp64";
  expect_same(got.first, expected.first, is_exact ? 1e-8 : 2e-3, "after one step");
  for (size_t step = 0; step < got.losses.size(); ++step) {
    EXPECT_NEAR(got.losses[step] / expected.losses[step], 1, is_exact ? 1e-9 : layout.replayed ? 1e-4 : 1e-5) << "step " << step;
    EXPECT_NEAR(got.balance[step], expected.balance[step], 1e-5 * (1 + std::abs(expected.balance[step]))) << "step " << step;
    EXPECT_NEAR(got.norms[step] / expected.norms[step], 1, is_exact ? 1e-8 : layout.replayed ? 5e-3 : 1e-3) << "step " << step;
  }
  EXPECT_EQ(got.loads, expected.loads);
  EXPECT_EQ(got.sources[0].size(), layout.pairs ? 0 : kSources);
  expect_same_sources(got, expected, is_exact ? 1e-8 : layout.replayed ? 1e-4 : 1e-5);
  expect_same(got.last, expected.last, is_exact ? 1e-7 : 5e-2, "after the last step");
  if (!layout.replayed) {  // validation is not replayed
    EXPECT_NEAR(got.validation / expected.validation, 1, is_exact ? 1e-8 : 1e-3);
  }
  const auto again = train(layout, 1, choices);
  EXPECT_EQ(again.losses[0], got.losses[0]);
  EXPECT_EQ(again.norms[0], got.norms[0]);
  for (const auto& [name, tensor] : got.first) EXPECT_TRUE(at::equal(again.first.at(name), tensor)) << name << ": not the same bits";
}

// Of a mixture a layer weighs the experts that a token takes: here as much as a dense layer.
TEST(CutDepth, weighs_experts_by_what_a_token_meets_of_them) {
  auto c = model_of({.ranks = 1, .family = "deepseek_v3", .top_k = 2});
  c.first_dense_layers = 2, c.experts = 8, c.router_groups = c.router_top_groups = 2, c.expert_ffn = 16, c.ffn = 48,
  c.shared_expert_ffn = 16, c.vocab_size = 3;
  const auto pieces = cut_depth(c, 2);
  EXPECT_EQ(pieces[0].end, 2);
}

// Telling sources apart changes no bit of what is learned.
TEST(SourcesToldApart, cost_no_bit) {
  using P = mesh::ParallelConfig;
  const std::vector<TestLayout> layouts = {{.parallel = P{.zero = 0}, .ranks = 1, .precision = "bf16", .microbatch = 5},
                                           {.parallel = P{.context = 2}, .ranks = 4, .precision = "fp32", .microbatch = 2},
                                           {.parallel = P{.pipeline = 2}, .ranks = 4, .precision = "fp32", .microbatch = 2},
                                           {.parallel = P{.tensor = 2}, .ranks = 2, .precision = "fp32", .mtp = 2}};
  for (const auto& layout : layouts) {
    const auto expected = train(layout, 2, nullptr, 0), got = train(layout, 2);
    EXPECT_TRUE(expected.sources[0].empty());
    EXPECT_EQ(got.losses, expected.losses) << name_of(layout);
    EXPECT_EQ(got.norms, expected.norms) << name_of(layout);
    for (const auto& [name, tensor] : expected.last) EXPECT_TRUE(at::equal(got.last.at(name), tensor)) << name_of(layout) << " " << name;
  }
}

// Buckets of parts of a tensor, of a layer, of all.
TEST(LayoutsWithBuckets, of_any_size_have_the_same_bits) {
  using P = mesh::ParallelConfig;
  for (const int64_t zero : {0, 1, 2, 3}) {
    for (TestLayout layout :
         {TestLayout{.parallel = P{.zero = zero}, .ranks = 3, .precision = "fp32", .optimizer = "adamw", .microbatch = 2},
          TestLayout{.parallel = P{.zero = zero}, .ranks = 2, .precision = "bf16", .optimizer = "muon"},
          TestLayout{.parallel = P{.tensor = 2, .zero = zero}, .ranks = 4, .precision = "fp32", .optimizer = "muon"}}) {
      constexpr int64_t kFewSteps = 3;
      layout.bucket_mib = 1000;
      const auto expected = train(layout, kFewSteps);
      for (const double mib : {0.001, 0.01}) {
        layout.bucket_mib = mib;
        const auto got = train(layout, kFewSteps);
        EXPECT_EQ(got.losses, expected.losses) << name_of(layout) << " " << mib;
        EXPECT_EQ(got.norms, expected.norms) << name_of(layout) << " " << mib;
        ASSERT_EQ(got.last.size(), expected.last.size());
        for (const auto& [name, tensor] : expected.last)
          EXPECT_TRUE(at::equal(got.last.at(name), tensor)) << name_of(layout) << " " << mib << " " << name;
      }
    }
  }
}

// Losses and norms, and what the steps leave: of one rank, and of as many as there are, whatever they share out.
TEST(ReproducibleLayouts, have_the_same_bits_for_any_number_of_data_ranks) {
  using P = mesh::ParallelConfig;
  const std::vector<TestLayout> models = {
      {.ranks = 1, .precision = "fp32", .optimizer = "adamw", .microbatch = 1},
      {.ranks = 1, .precision = "bf16", .optimizer = "muon", .microbatch = 1},
      {.ranks = 1, .family = "zaya1", .precision = "fp32", .optimizer = "muon", .microbatch = 1},
      {.ranks = 1, .family = "deepseek_v3", .precision = "bf16", .optimizer = "adamw", .microbatch = 1}};
  for (TestLayout layout : models) {
    constexpr int64_t kFewSteps = 3;
    layout.reproducible = true;
    layout.clip = 0.1;
    const auto expected = train(layout, kFewSteps);
    for (layout.ranks = 1; layout.ranks <= 4; ++layout.ranks) {
      for (const int64_t zero : {0, 1, 2, 3}) {
        if (!base::tests_run_at_night() && (layout.ranks + zero) % 2 == 0) continue;  // each of both, half of the pairs
        layout.parallel = P{.zero = zero};
        const auto got = train(layout, kFewSteps);
        EXPECT_EQ(got.losses, expected.losses) << name_of(layout);
        EXPECT_EQ(got.norms, expected.norms) << name_of(layout);
        EXPECT_EQ(got.loads, expected.loads) << name_of(layout);
        for (size_t step = 0; step < kFewSteps; ++step)
          for (size_t s = 0; s < kSources; ++s) EXPECT_EQ(got.sources[step][s].loss, expected.sources[step][s].loss) << name_of(layout);
        ASSERT_EQ(got.last.size(), expected.last.size());
        for (const auto& [name, tensor] : expected.last)
          EXPECT_TRUE(at::equal(got.last.at(name), tensor)) << name_of(layout) << " " << name;
      }
    }
  }
}

// On streams that put everything off the ranks compute what they compute on the CPU, to the last bit.
TEST(EmulatedRanks, have_the_bits_of_ranks_on_the_cpu) {
  using P = mesh::ParallelConfig;
  const std::vector<TestLayout> layouts = {
      {.parallel = P{.zero = 0}, .ranks = 1},
      {.parallel = P{.zero = 0}, .ranks = 2, .microbatch = 2},
      {.parallel = P{.zero = 1}, .ranks = 4},
      {.parallel = P{.zero = 2}, .ranks = 2, .optimizer = "adamw", .microbatch = 3},
      {.parallel = P{.zero = 3}, .ranks = 4, .recompute = models::Recompute::full, .microbatch = 1},
      {.parallel = P{.tensor = 2, .zero = 2}, .ranks = 4},
      {.parallel = P{.pipeline = 2}, .ranks = 4, .microbatch = 2},
      {.parallel = P{.expert = 2}, .ranks = 4, .family = "zaya1"},
  };
  for (auto layout : layouts) {
    constexpr int64_t kFewSteps = 2;
    const auto expected = train(layout, kFewSteps);
    layout.emulated = true;
    const auto got = train(layout, kFewSteps);
    EXPECT_EQ(got.losses, expected.losses) << name_of(layout);
    EXPECT_EQ(got.norms, expected.norms) << name_of(layout);
    ASSERT_EQ(got.last.size(), expected.last.size());
    for (const auto& [name, tensor] : expected.last) EXPECT_TRUE(at::equal(got.last.at(name), tensor)) << name_of(layout) << " " << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Emulated, Layouts, ::testing::ValuesIn(emulated_layouts()), [](const auto& info) { return name_of(info.param); });
INSTANTIATE_TEST_SUITE_P(All, Layouts, ::testing::ValuesIn(test_layouts()), [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace ingot::train
