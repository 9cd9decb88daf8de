// The same model on every layout of ranks: gradients of every parameter, 6 losses (20 at night) and the final weights and moments are those
// of one rank alone, and the same bits in every run; in each step all copies of a weight are the same (replica_check.h). Ranks are
// threads. Top-1 routing is discontinuous, so the mixture of experts is compared in fp64, and in fp32 with the choices that one rank's
// routers made; the dense model in both.
//
// Some layouts run on emulated devices too, one for each rank, for three steps; with ./scripts/test --device emulated all of them do, for
// all steps. The one rank that they are compared with computes on the CPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "base/test_night.h"
#include "comm/world.h"
#include "device/test_device.h"
#include "train/parallel_model.h"

namespace ingot::train {
namespace {

constexpr int64_t kRows = 12;

int64_t all_steps() { return base::tests_run_at_night() ? 20 : 6; }

struct Layout {
  mesh::ParallelConfig parallel;
  int ranks;
  std::string family = "llama", precision = "fp64", optimizer = "muon", linear = "gated_delta";
  models::Recompute recompute = models::Recompute::none;
  int64_t microbatch = 0, seq = 12;
  int64_t window = 0;  // of every other layer
  bool spread = false, tie = true, biases = false, force_balance = false;
  int64_t top_k = 1, kv_heads = 12;
  std::vector<std::string> mixers = {}, feed_forwards = {};  // in place of the family's
  bool replayed = false;                                     // tokens go to the experts that they went to on one rank
  bool emulated = false;                                     // ranks have emulated devices
  double bucket_mib = 0.01, clip = 1;
  bool is_special = false;   // multipliers, capped logits and their loss, learning rates by width
  double qk_clip = 0;        // beyond which queries and keys are scaled back
  int64_t lora = 0;          // rank of adapters, which alone are trained
  bool pairs = false;        // of answers, learned by DPO
  bool encoder = false;      // tokens see those behind them
  int64_t draft = 0;         // tokens that are drafted in one pass
  int64_t mtp = 0;           // predictors of further tokens
  std::string balance = {};  // whose tokens the balance loss looks at; empty = no losses of routers
};

models::ModelConfig model_of(const Layout& layout) {
  models::ModelConfig c;
  c.family = layout.family;
  c.layers = 4, c.hidden = 24, c.vocab_size = 48, c.heads = 24, c.kv_heads = 12, c.head_dim = 4, c.ffn = 48;
  c.experts = 4, c.expert_ffn = 12, c.router_hidden = 8, c.rope_fraction = 0.5, c.init_std = 0.3;
  c.linear_attention = layout.linear, c.feature_map = layout.linear.ends_with("delta") || layout.linear == "kda" ? "l2" : "silu",
  c.layer_pattern = "LLN";
  c.gate_rank = 3;
  // The norm on what a head of four channels reads turns its direction with every GEMM near 0: rounding would grow step by step.
  if (layout.family == "linear_llama" || layout.family == "fla" || !layout.mixers.empty()) c.norm_eps = 1;
  if (layout.window > 0) c.window = layout.window, c.layer_types = {"full", "sliding", "sliding", "full"};
  c.tie_embeddings = layout.tie;
  c.attention_bias = layout.biases, c.mlp_bias = layout.biases && layout.family != "gpt_oss";
  c.force_balance = layout.force_balance;
  c.top_k = layout.top_k, c.kv_heads = layout.kv_heads;
  c.mixers = layout.mixers, c.feed_forwards = layout.feed_forwards;
  if (layout.family == "qwen3_next") {
    c.linear_heads = 12, c.linear_key_heads = 6, c.linear_key_dim = c.linear_value_dim = 4, c.feature_map = "l2", c.norm_eps = 1;
    c.shared_expert_ffn = 24, c.layer_pattern = "LLLN";
  }
  if (layout.family == "kimi_linear") {
    c.kv_heads = c.heads, c.head_dim = 6, c.rope_head_dim = 2, c.value_head_dim = 3, c.kv_rank = 10, c.layer_types = {"nope"}, c.rope_fraction = 1;
    c.linear_attention = "kda", c.feature_map = "l2", c.linear_heads = 12, c.linear_key_dim = c.linear_value_dim = 4, c.norm_eps = 1;
    c.gate_rank = 5, c.output_gate_rank = 7, c.layer_pattern = "LLLN";
    c.router_score = "sigmoid", c.shared_expert_ffn = 24, c.first_dense_layers = 1;
  }
  if (layout.family == "fla" && layout.linear == "kda") c.linear_heads = 12, c.linear_key_heads = 6, c.gate_rank = c.output_gate_rank = 4;
  if (layout.is_special) {
    c.residual_scale = 0.7, c.logit_scale = 0.5, c.logit_cap = 2, c.mup_base_hidden = c.hidden / 2;
  }
  c.mtp_layers = layout.mtp;
  c.lora_rank = layout.lora;
  c.bidirectional = layout.encoder, c.draft_block = layout.draft, c.draft_mask_id = 47;
  if (layout.encoder) c.short_convolution = 0;
  if (layout.family == "deepseek_v3") {
    c.kv_heads = c.heads, c.head_dim = 6, c.rope_head_dim = 2, c.value_head_dim = 3, c.kv_rank = 10, c.query_rank = 14, c.rope_fraction = 1;
    c.router_score = "sigmoid", c.router_groups = 2, c.router_scale = 1.5, c.shared_expert_ffn = 24, c.first_dense_layers = 1;
  }
  return c;
}

// Packed documents of uneven lengths, some positions without targets; other tokens in every step.
data::Batch batch_of(int64_t step, int64_t first_row, int64_t rows, int64_t seq) {
  data::Batch b{.batch = rows, .seq = seq};
  for (int64_t row = first_row; row < first_row + rows; ++row) {
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
        if (document % 2 == 0 && document < 4 && i == starts[document]) b.reference_margins[at] = 0.1 * static_cast<double>(b.inputs[at] % 7) - 0.3;
      }
  return b;
}

data::Batch batch_for(const Layout& layout, int64_t step, int64_t first_row, int64_t rows) {
  auto batch = batch_of(step, first_row, rows, layout.seq);
  // Over ranks an encoder's rows are one document each.
  if (layout.encoder && layout.family == "linear_llama") std::fill(batch.document_starts.begin(), batch.document_starts.end(), 0);
  return layout.pairs ? pairs_of(std::move(batch)) : batch;
}

// Whole tensors, put together from the slices of all ranks.
using State = std::map<std::string, at::Tensor>;

// Of each step and layer, int64 [kRows, seq].
using Choices = std::map<std::pair<int64_t, int64_t>, at::Tensor>;

struct Outcome {
  std::vector<double> losses, norms, balance;
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

Outcome train(const Layout& layout, int64_t steps = all_steps(), const Choices* replayed = nullptr) {
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
    if (!layout.balance.empty())
      setup.routing_losses = {.balance = 0.5, .z = 0.1, .over = layers::balance_over_from_name(layout.balance)};
    setup.optimizer.clip = layout.clip;
    if (layout.is_special) setup.z_loss = 0.01;
    setup.optimizer.qk_clip = layout.qk_clip;
    if (layout.pairs) setup.preferences = {.beta = 0.5, .label_smoothing = 0.1};
    setup.parallel.bucket_mib = layout.bucket_mib;
    ParallelModel model(setup, groups);
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
                                  result.draft_loss.value_or(0) + result.attention_max.value_or(0) + 10 * result.dpo_accuracy.value_or(0) + result.dpo_margin.value_or(0));
        outcome.loads.push_back(result.expert_tokens);
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

// What one rank alone does, once for each kind of model.
const Outcome& alone(Layout layout) {
  static std::map<std::string, Outcome> known;
  layout.parallel = {.zero = 0};
  layout.ranks = 1;
  layout.emulated = false;
  layout.recompute = models::Recompute::none;
  if (layout.balance != "microbatch") layout.microbatch = 0;
  const auto key = fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", layout.balance, layout.kv_heads, layout.top_k, fmt::join(layout.mixers, ","),
                               fmt::join(layout.feed_forwards, ","), layout.replayed, layout.family, layout.linear, layout.precision,
                               layout.optimizer, layout.tie, layout.biases, layout.force_balance, layout.seq, layout.window, layout.is_special, layout.mtp, layout.lora, layout.pairs, layout.encoder, layout.draft, layout.qk_clip);
  if (!known.contains(key)) known.emplace(key, train(layout));
  return known.at(key);
}

std::string name_of(const Layout& l) {
  auto name = fmt::format("{}_{}_{}", l.family, l.precision, l.optimizer);
  if (l.family == "linear_llama" || l.family == "fla") name += "_" + l.linear;
  const auto& p = l.parallel;
  for (const auto& [label, size] : {std::pair{"pipeline", p.pipeline},
                                    {"data", l.ranks / (p.pipeline * p.context * p.tensor * p.tensor_sequence)},
                                    {"context", p.context},
                                    {"tensor", p.tensor},
                                    {"tensor_sequence", p.tensor_sequence},
                                    {"expert", p.expert}})
    if (size > 1) name += fmt::format("_{}{}", label, size);
  if (p.context > 1) name += "_" + p.context_method;
  if (p.context > 1 && l.family == "linear_llama") name += "_" + p.state_method;
  if (p.context_order != "zigzag") name += "_contiguous";
  if (p.head_buckets > 1) name += fmt::format("_buckets{}", p.head_buckets);
  if (l.window) name += "_window";
  if (p.expert_tensor > 1) name += fmt::format("_slices{}", p.expert_tensor);
  name += fmt::format("_zero{}", p.zero);
  if (p.pipeline > 1) name += "_" + p.pipeline_schedule + (p.pipeline_chunks > 1 ? std::to_string(p.pipeline_chunks) : "");
  if (!p.sequence_parallel) name += "_whole_norms";
  if (l.microbatch) name += fmt::format("_micro{}", l.microbatch);
  if (l.recompute != models::Recompute::none) name += l.recompute == models::Recompute::full ? "_full" : "_selective";
  if (l.spread) name += "_spread";
  if (!l.tie) name += "_untied";
  if (l.biases) name += "_biases";
  if (l.force_balance) name += "_forced";
  if (l.replayed) name += "_replayed";
  if (l.is_special) name += "_special";
  if (l.lora > 0) name += fmt::format("_lora{}", l.lora);
  if (l.pairs) name += "_pairs";
  if (l.qk_clip > 0) name += "_qk_clip";
  if (l.encoder) name += "_encoder";
  if (l.draft > 0) name += fmt::format("_drafts{}", l.draft);
  if (l.mtp > 0) name += fmt::format("_mtp{}", l.mtp);
  if (!l.balance.empty()) name += "_balance_over_" + l.balance;
  if (l.kv_heads != 12) name += fmt::format("_kv{}", l.kv_heads);
  if (l.top_k > 1) name += fmt::format("_top{}", l.top_k);
  for (const auto* parts : {&l.mixers, &l.feed_forwards})
    if (!parts->empty()) name += fmt::format("_{}", fmt::join(*parts, "_"));
  return name;
}

void PrintTo(const Layout& layout, std::ostream* out) { *out << name_of(layout); }

class Layouts : public ::testing::TestWithParam<Layout> {};

TEST_P(Layouts, train_the_same_model) {
  auto layout = GetParam();
  layout.emulated = layout.emulated || device::tests_are_emulated();
  const auto& expected = alone(layout);
  const auto* choices = layout.replayed ? &expected.choices : nullptr;
  if (GetParam().emulated) {
    const auto got = train(layout, 3, choices);
    expect_same(got.first, expected.first, 1e-8, "after one step");
    for (size_t step = 0; step < 3; ++step) EXPECT_NEAR(got.losses[step] / expected.losses[step], 1, 1e-9) << "step " << step;
    return;
  }
  const auto got = train(layout, all_steps(), choices);
  // Where a gradient is nearly nothing, its rounding decides which way AdamW steps: in fp32, and with the router's gradients, that shows.
  const bool is_exact = layout.precision == "fp64";
  expect_same(got.first, expected.first, is_exact ? 1e-8 : 2e-3, "after one step");
  for (size_t step = 0; step < got.losses.size(); ++step) {
    EXPECT_NEAR(got.losses[step] / expected.losses[step], 1, is_exact ? 1e-9 : layout.replayed ? 1e-4 : 1e-5) << "step " << step;
    EXPECT_NEAR(got.balance[step], expected.balance[step], 1e-5 * (1 + expected.balance[step])) << "step " << step;
    EXPECT_NEAR(got.norms[step] / expected.norms[step], 1, is_exact ? 1e-8 : layout.replayed ? 5e-3 : 1e-3) << "step " << step;
  }
  EXPECT_EQ(got.loads, expected.loads);
  expect_same(got.last, expected.last, is_exact ? 1e-7 : 5e-2, "after the last step");
  if (!layout.replayed) {  // validation is not replayed
    EXPECT_NEAR(got.validation / expected.validation, 1, is_exact ? 1e-8 : 1e-3);
  }
  const auto again = train(layout, 2, choices);
  for (size_t step = 0; step < 2; ++step) EXPECT_EQ(again.losses[step], got.losses[step]) << "not the same bits, step " << step;
}

// Adapters, pairs of answers, encoders and drafts, each where it is not refused.
std::vector<Layout> fine_tuned_layouts() {
  using P = mesh::ParallelConfig;
  const auto pipeline = [](int64_t stages, const char* schedule) {
    P p{.pipeline = stages};
    p.pipeline_schedule = schedule;
    return p;
  };
  std::vector<Layout> all;
  for (const int64_t zero : {1, 3})
    all.push_back({.parallel = P{.zero = zero}, .ranks = 3, .recompute = models::Recompute::full, .microbatch = 2, .lora = 3, .pairs = true});
  all.push_back({.parallel = P{.context = 2, .zero = 0}, .ranks = 4, .optimizer = "adamw", .lora = 3});
  all.push_back({.parallel = P{.context = 2, .zero = 2}, .ranks = 4, .pairs = true});
  all.push_back({.parallel = P{.tensor = 2, .zero = 1}, .ranks = 4, .microbatch = 3, .pairs = true});
  for (const char* schedule : {"1f1b", "zero_bubble"})
    all.push_back({.parallel = pipeline(2, schedule), .ranks = 2, .microbatch = 3, .tie = false, .lora = 3, .pairs = true});
  all.push_back({.parallel = pipeline(2, "1f1b"), .ranks = 4, .microbatch = 2, .lora = 3});
  P experts{.zero = 1};
  experts.expert = 2;
  all.push_back({.parallel = experts, .ranks = 2, .family = "zaya1", .lora = 3, .pairs = true});
  all.push_back({.parallel = P{.zero = 3}, .ranks = 2, .family = "deepseek_v3", .top_k = 2, .lora = 3});
  for (const auto& p : {P{.zero = 1}, P{.zero = 3}, P{.tensor = 2}, P{.pipeline = 2, .zero = 0}})
    for (const char* family : {"llama", "deepseek_v3"})
      all.push_back({.parallel = p, .ranks = p.pipeline > 1 || p.tensor > 1 ? 4 : 3, .family = family, .microbatch = 2, .biases = family == std::string("llama"), .top_k = family == std::string("llama") ? 1 : 2, .qk_clip = 3});
  all.push_back({.parallel = P{.zero = 1}, .ranks = 3, .recompute = models::Recompute::full, .microbatch = 2, .window = 5, .encoder = true});
  all.push_back({.parallel = P{.tensor = 2, .zero = 0}, .ranks = 2, .optimizer = "adamw", .encoder = true});
  all.push_back({.parallel = pipeline(2, "1f1b"), .ranks = 2, .microbatch = 3, .encoder = true});
  all.push_back({.parallel = P{.context = 2, .context_order = "contiguous"}, .ranks = 4, .family = "linear_llama", .linear = "basic", .mixers = {"linear"}, .encoder = true});
  all.push_back({.parallel = P{.zero = 3}, .ranks = 3, .recompute = models::Recompute::full, .microbatch = 2, .window = 5, .draft = 3});
  all.push_back({.parallel = P{.tensor = 2, .zero = 1}, .ranks = 4, .optimizer = "adamw", .lora = 0, .draft = 4});
  all.push_back({.parallel = P{.tensor = 2, .zero = 1}, .ranks = 4, .family = "zaya1", .microbatch = 3, .draft = 4});
  all.push_back({.parallel = experts, .ranks = 2, .family = "qwen3_moe", .top_k = 2, .draft = 5, .balance = "batch"});
  return all;
}

std::vector<Layout> layouts() {
  using P = mesh::ParallelConfig;
  auto all = fine_tuned_layouts();
  for (const std::string family : {"llama", "zaya1"}) {
    for (const int64_t zero : {0, 1, 2, 3})
      for (const int ranks : {2, 3}) all.push_back({.parallel = P{.zero = zero}, .ranks = ranks, .family = family});
    all.push_back({.parallel = P{.zero = 1}, .ranks = 4, .family = family, .spread = true});
    all.push_back(
        {.parallel = P{.zero = 3}, .ranks = 4, .family = family, .recompute = models::Recompute::full, .microbatch = 1, .tie = false});
    all.push_back({.parallel = P{.zero = 2},
                   .ranks = 2,
                   .family = family,
                   .optimizer = "adamw",
                   .recompute = models::Recompute::selective,
                   .microbatch = 2});
    for (const int64_t tensor : {2, 3, 4})
      all.push_back({.parallel = P{.tensor = tensor}, .ranks = static_cast<int>(tensor), .family = family});
    all.push_back({.parallel = P{.tensor = 2, .zero = 1}, .ranks = 4, .family = family, .microbatch = 3});
    all.push_back(
        {.parallel = P{.tensor = 3, .zero = 3}, .ranks = 6, .family = family, .recompute = models::Recompute::full, .tie = false});
    all.push_back({.parallel = P{.tensor = 2, .zero = 2}, .ranks = 8, .family = family, .spread = true, .tie = false});
    all.push_back({.parallel = P{.tensor = 2, .zero = 0}, .ranks = 4, .family = family, .recompute = models::Recompute::selective});
  }
  all.push_back({.parallel = P{.tensor = 2, .sequence_parallel = false}, .ranks = 2, .biases = true});
  all.push_back({.parallel = P{.tensor = 2, .zero = 1, .sequence_parallel = false}, .ranks = 4, .tie = false});
  all.push_back({.parallel = P{.tensor = 4, .zero = 3}, .ranks = 8, .biases = true});
  for (const std::string family : {"llama", "zaya1"}) {
    const auto pipeline = [&](int64_t stages, const char* schedule, int64_t chunks = 1) {
      P p{.pipeline = stages};
      p.pipeline_schedule = schedule;
      p.pipeline_chunks = chunks;
      return p;
    };
    for (const char* schedule : {"gpipe", "1f1b", "zero_bubble"})
      for (const int64_t stages : {2, 4})
        all.push_back({.parallel = pipeline(stages, schedule),
                       .ranks = static_cast<int>(stages),
                       .family = family,
                       .microbatch = 2,
                       .tie = stages == 2});
    all.push_back({.parallel = pipeline(3, "1f1b"), .ranks = 3, .family = family, .recompute = models::Recompute::full, .microbatch = 3});
    all.push_back({.parallel = pipeline(2, "interleaved", 2), .ranks = 2, .family = family, .microbatch = 3});
    for (const int64_t zero : {0, 1, 2, 3}) {
      auto p = pipeline(2, zero == 1 ? "zero_bubble" : zero == 2 ? "interleaved" : "1f1b", zero == 2 ? 2 : 1);
      p.zero = zero;
      all.push_back({.parallel = p, .ranks = 4, .family = family, .microbatch = 3, .tie = zero != 0});
    }
    for (const char* schedule : {"1f1b", "zero_bubble"}) {
      auto p = pipeline(2, schedule);
      p.tensor = 2;
      all.push_back({.parallel = p, .ranks = 4, .family = family, .recompute = models::Recompute::selective, .microbatch = 2});
      p.zero = 3;
      all.push_back({.parallel = p, .ranks = 8, .family = family, .microbatch = 2, .spread = true});
      if (family == "llama") continue;
      p.zero = 1, p.expert = 2;
      all.push_back({.parallel = p, .ranks = 8, .family = family, .microbatch = 3});
    }
  }
  for (const std::string family : {"llama", "zaya1"}) {
    const auto sequence = [&](int64_t ranks, const char* method, const char* order = "zigzag") {
      P p{.context = ranks};
      p.context_method = method;
      p.context_order = order;
      return p;
    };
    for (const char* method : {"ring", "bidirectional_ring", "allgather", "ulysses"}) {
      for (const int64_t ranks : {2, 3})
        all.push_back({.parallel = sequence(ranks, method), .ranks = static_cast<int>(ranks), .family = family});
      all.push_back({.parallel = sequence(4, method), .ranks = 4, .family = family, .seq = 24, .window = 5, .tie = false});
      auto p = sequence(2, method, "contiguous");
      p.zero = 3;
      all.push_back({.parallel = p, .ranks = 4, .family = family, .recompute = models::Recompute::full, .microbatch = 2});
      p = sequence(2, method);
      p.tensor = 2, p.zero = 2;
      all.push_back(
          {.parallel = p, .ranks = 8, .family = family, .recompute = models::Recompute::selective, .microbatch = 3, .spread = true});
    }
    auto p = sequence(2, "ring");
    p.zero = 0;
    all.push_back({.parallel = p, .ranks = 4, .family = family, .optimizer = "adamw"});
    p.tensor = 3, p.sequence_parallel = false;
    if (family == "llama") all.push_back({.parallel = p, .ranks = 6, .biases = true});
    for (const char* schedule : {"1f1b", "zero_bubble"}) {
      p = sequence(2, schedule == std::string("1f1b") ? "ring" : "ulysses");
      p.pipeline = 2, p.pipeline_schedule = schedule;
      all.push_back({.parallel = p, .ranks = 4, .family = family, .microbatch = 3});
      p.zero = 1;
      all.push_back({.parallel = p, .ranks = 8, .family = family, .microbatch = 2});
    }
    p = sequence(2, "allgather");
    p.pipeline = 2, p.tensor = 2, p.pipeline_schedule = "zero_bubble";
    all.push_back({.parallel = p, .ranks = 8, .family = family, .microbatch = 2});
    if (family == "llama") {
      all.push_back({.parallel = sequence(2, "ring"), .ranks = 2, .precision = "fp32"});
      continue;
    }
    p = sequence(2, "ring");
    p.expert = 2;
    all.push_back({.parallel = p, .ranks = 2, .family = family});
    p.expert = 4, p.zero = 3;
    all.push_back({.parallel = p, .ranks = 8, .family = family, .recompute = models::Recompute::full, .microbatch = 3});
    p.tensor = 2, p.expert = 2, p.expert_tensor = 2;
    all.push_back({.parallel = p, .ranks = 4, .family = family});
  }
  // TSP: with every axis that it may stand beside, and alone.
  for (const std::string family : {"llama", "zaya1"}) {
    for (const int64_t ranks : {2, 3, 4})
      all.push_back({.parallel = P{.tensor_sequence = ranks}, .ranks = static_cast<int>(ranks), .family = family, .seq = 24});
    auto p = P{.tensor_sequence = 2, .head_buckets = 2};
    p.context_order = "contiguous";
    all.push_back({.parallel = p, .ranks = 2, .family = family, .optimizer = "adamw", .seq = 24, .window = 5, .tie = false});
    for (const int64_t zero : {0, 1, 3})
      all.push_back({.parallel = P{.tensor_sequence = 2, .zero = zero},
                     .ranks = 4,
                     .family = family,
                     .recompute = zero == 1 ? models::Recompute::selective : models::Recompute::full,
                     .microbatch = 3,
                     .spread = zero == 3});
    p = P{.pipeline = 2, .tensor_sequence = 2};
    for (const char* schedule : {"1f1b", "zero_bubble"}) {
      p.pipeline_schedule = schedule;
      all.push_back({.parallel = p, .ranks = 4, .family = family, .microbatch = 3});
      p.zero = 2;
      all.push_back({.parallel = p, .ranks = 8, .family = family, .microbatch = 2, .tie = false});
    }
    if (family == "llama") {
      all.push_back({.parallel = P{.tensor_sequence = 2}, .ranks = 4, .biases = true});
      all.push_back({.parallel = P{.tensor_sequence = 2}, .ranks = 2, .precision = "fp32"});
      continue;
    }
    for (const int64_t expert : {2, 4}) {  // folded on the same ranks, and over more
      all.push_back({.parallel = P{.expert = expert, .tensor_sequence = 2}, .ranks = 4, .family = family, .microbatch = 3});
      all.push_back({.parallel = P{.pipeline = 2, .expert = expert, .tensor_sequence = 2},
                     .ranks = 8,
                     .family = family,
                     .recompute = models::Recompute::full,
                     .microbatch = 3});
    }
  }
  // Norms of queries and keys: of heads, which every way of cutting weights shares out; over all channels, which none does.
  for (const bool sharded : {true, false})
    for (const int64_t tensor : {2, 3})
      all.push_back(
          {.parallel = P{.tensor = tensor, .sequence_parallel = sharded}, .ranks = static_cast<int>(2 * tensor), .family = "qwen3"});
  for (const int64_t ranks : {2, 4})
    all.push_back({.parallel = P{.tensor_sequence = ranks, .zero = 1}, .ranks = static_cast<int>(ranks), .family = "qwen3", .seq = 24});
  all.push_back({.parallel = P{.tensor_sequence = 4}, .ranks = 4, .family = "qwen3", .seq = 24, .kv_heads = 2});  // neighbours share one
  all.push_back({.parallel = P{.pipeline = 2, .context = 2}, .ranks = 4, .family = "qwen3", .microbatch = 3});
  // Norms behind the branches, and of 1 + weight.
  for (const auto& p :
       {P{.tensor = 2}, P{.tensor = 2, .sequence_parallel = false}, P{.tensor_sequence = 2}, P{.pipeline = 2, .context = 2}})
    all.push_back({.parallel = p, .ranks = p.pipeline > 1 ? 4 : 2, .family = "gemma3_text", .microbatch = 3, .seq = 24});
  for (const auto& p : {P{.context = 2}, P{.pipeline = 2}, P{.zero = 3}})
    all.push_back({.parallel = p, .ranks = 2, .family = "olmo2", .recompute = models::Recompute::full});
  for (const auto& p : {P{.tensor = 2, .expert = 2}, P{.zero = 3}})
    all.push_back({.parallel = p, .ranks = 2, .family = "mixtral", .top_k = 2});
  all.push_back({.parallel = P{.pipeline = 2, .context = 2}, .ranks = 4, .family = "smollm3", .microbatch = 3});
  for (const auto& p : {P{.tensor = 2}, P{.tensor_sequence = 2}, P{.zero = 3}})
    all.push_back({.parallel = p, .ranks = 2, .family = "smollm3", .seq = 24});
  for (const auto& p : {P{.zero = 1}, P{.zero = 3}, P{.tensor = 2}, P{.tensor_sequence = 2}, P{.pipeline = 2, .context = 2}})
    all.push_back({.parallel = p, .ranks = p.pipeline > 1 ? 4 : 2, .family = "phi3", .microbatch = 3, .seq = 24});
  for (const auto& p : {P{.zero = 1}, P{.context = 2}, P{.pipeline = 2}})
    all.push_back({.parallel = p, .ranks = 2, .family = p.context > 1 || p.pipeline > 1 ? "qwen3_moe" : "gemma3_text", .microbatch = 3, .seq = 24, .top_k = 2});
  // CCA beside softmax attention.
  for (const auto& p : {P{.zero = 1}, P{.context = 2}, P{.tensor = 2}, P{.tensor_sequence = 2}, P{.expert = 2}, P{.pipeline = 2}})
    all.push_back({.parallel = p, .ranks = 2, .family = "zaya1", .microbatch = 3, .seq = 24, .mixers = {"cca", "softmax"}});
  // Latents, which are made between layers; an expert for all tokens.
  for (const auto& p : {P{.context = 2}, P{.tensor = 2, .expert = 2}, P{.tensor = 3}, P{.pipeline = 2, .expert = 2}, P{.zero = 3},
                        P{.context = 2, .context_method = "ulysses"}})
    all.push_back({.parallel = p, .ranks = p.pipeline > 1 ? 4 : std::max<int>(2, static_cast<int>(p.tensor)), .family = "deepseek_v3",
                   .recompute = p.zero == 3 ? models::Recompute::full : models::Recompute::none, .microbatch = 3, .top_k = 2});
  all.push_back({.parallel = P{.tensor = 2, .sequence_parallel = false}, .ranks = 2, .family = "deepseek_v3", .feed_forwards = {"mlp"}});
  // Sinks, which lie with their heads; experts with biases.
  for (const auto& p : {P{.tensor = 2, .expert = 2}, P{.pipeline = 2, .expert = 2}, P{.zero = 3}, P{.tensor = 3}, P{.context = 2},
                        P{.context = 2, .context_method = "ulysses"}})
    all.push_back({.parallel = p, .ranks = p.pipeline > 1 ? 4 : std::max<int>(2, static_cast<int>(p.tensor)), .family = "gpt_oss",
                   .recompute = p.zero == 3 ? models::Recompute::full : models::Recompute::none, .microbatch = 3, .window = 5, .biases = p.tensor != 3, .top_k = 2});
  // A head of keys for several of values, one norm for all heads, gated attention, a gated expert for all tokens.
  for (const auto& p : {P{.context = 2, .context_order = "contiguous"}, P{.tensor = 2, .expert = 2}, P{.tensor = 3}, P{.pipeline = 2, .expert = 2}, P{.zero = 3}})
    all.push_back({.parallel = p, .ranks = p.pipeline > 1 ? 4 : std::max<int>(2, static_cast<int>(p.tensor)), .family = "qwen3_next",
                   .recompute = p.zero == 3 ? models::Recompute::full : models::Recompute::none, .microbatch = 3, .top_k = 2});
  all.push_back({.parallel = P{.tensor = 2, .sequence_parallel = false}, .ranks = 2, .family = "qwen3_next", .feed_forwards = {"mlp"}});
  for (const auto& p : {P{.context = 2, .context_order = "contiguous"}, P{.tensor = 2, .expert = 2}, P{.tensor = 3}, P{.pipeline = 2, .expert = 2}, P{.zero = 3}})
    all.push_back({.parallel = p, .ranks = p.pipeline > 1 ? 4 : std::max<int>(2, static_cast<int>(p.tensor)), .family = "kimi_linear",
                   .recompute = p.zero == 3 ? models::Recompute::full : models::Recompute::none, .microbatch = 3, .top_k = 2});
  // Predictors of further tokens, capped logits and their losses, multipliers, and learning rates by width.
  for (const auto& p : {P{.context = 2}, P{.tensor = 2, .expert = 2}, P{.tensor_sequence = 2}, P{.tensor = 3}, P{.pipeline = 2}, P{.zero = 1}, P{.zero = 3}})
    for (const char* family : {"deepseek_v3", "granite"})
      if (family != std::string("deepseek_v3") || p.tensor_sequence == 1)
        all.push_back({.parallel = p.expert > 1 && family == std::string("granite") ? P{.tensor = 2, .sequence_parallel = false} : p, .ranks = std::max<int>(2, static_cast<int>(p.tensor)),
                       .family = family, .optimizer = p.zero == 1 ? "muon" : "adamw", .recompute = p.zero == 3 ? models::Recompute::full : models::Recompute::none, .microbatch = 3,
                       .top_k = family == std::string("granite") ? 1 : 2, .is_special = true, .mtp = p.pipeline > 1 ? 0 : 2});
  // Losses of routers look at tokens of other ranks.
  for (const auto& p : {P{.zero = 1}, P{.context = 2}, P{.tensor = 2, .expert = 2}, P{.pipeline = 2, .expert = 2}, P{.tensor_sequence = 2}}) {
    const int ranks = p.pipeline > 1 || p.zero == 1 ? 4 : 2;
    for (const char* over : {"sequence", "batch"})
      if (over != std::string("batch") || p.pipeline == 1)
        all.push_back({.parallel = p, .ranks = ranks, .family = "mixtral", .recompute = p.context == 2 ? models::Recompute::full : models::Recompute::selective, .microbatch = over == std::string("batch") ? 0 : 3, .top_k = 2, .balance = over});
    all.push_back({.parallel = p, .ranks = ranks, .family = p.tensor_sequence == 1 ? "deepseek_v3" : "mixtral", .microbatch = 3, .top_k = 2, .balance = "microbatch"});
  }
  all.push_back({.parallel = P{.context = 2}, .ranks = 4, .family = "zaya1", .top_k = 2, .balance = "batch"});
  // Several experts for a token; parts that no family has together.
  all.push_back({.parallel = P{.expert = 2, .zero = 3}, .ranks = 4, .family = "olmoe", .recompute = models::Recompute::full, .top_k = 2});
  all.push_back({.parallel = P{.context = 2, .expert = 2}, .ranks = 2, .family = "olmoe", .top_k = 2});
  all.push_back({.parallel = P{.tensor = 2, .expert = 2, .expert_tensor = 2}, .ranks = 4, .family = "qwen3_moe", .top_k = 2});
  all.push_back({.parallel = P{.pipeline = 2, .expert = 2}, .ranks = 4, .family = "zaya1", .microbatch = 3, .top_k = 2});
  for (const auto& p : {P{.zero = 1}, P{.tensor = 2}, P{.pipeline = 2}, P{.expert = 2, .zero = 1}, P{.context = 2, .context_order = "contiguous"}})
    all.push_back({.parallel = p,
                   .ranks = 2,
                   .family = "zaya1",
                   .recompute = p.tensor == 2 ? models::Recompute::full : models::Recompute::none,
                   .microbatch = 3,
                   .top_k = 2,
                   .mixers = {"cca", "linear", "softmax", "linear"},
                   .feed_forwards = {"moe", "mlp"}});
  // Gates whose projections all heads share, or each head has its own; a pipeline whose pieces hold both kinds of layer.
  for (const std::string variant : {"diagonal_gate", "gated_delta", "retention", "kda", "retnet"}) {
    all.push_back({.parallel = P{.tensor = 2}, .ranks = 2, .family = "linear_llama", .linear = variant});
    all.push_back(
        {.parallel = P{.tensor = 3, .zero = 1, .sequence_parallel = false}, .ranks = 6, .family = "linear_llama", .linear = variant});
  }
  // fla's: q and k through RoPE, a bias of the output gate.
  for (const std::string variant : {"retnet", "kda"})
    for (const auto& p : {P{.zero = 1}, P{.tensor = 2}, P{.pipeline = 2}, P{.context = 2, .context_order = "contiguous"}})
      all.push_back({.parallel = p, .ranks = 2, .family = "fla", .linear = variant, .microbatch = 3});
  all.push_back({.parallel = P{.tensor = 2, .zero = 3},
                 .ranks = 4,
                 .family = "linear_llama",
                 .linear = "diagonal_gate",
                 .recompute = models::Recompute::full,
                 .microbatch = 1});
  all.push_back({.parallel = P{.zero = 1}, .ranks = 3, .family = "linear_llama", .recompute = models::Recompute::selective});
  {
    P p{.pipeline = 2};
    p.pipeline_schedule = "1f1b", p.tensor = 2;
    all.push_back({.parallel = p, .ranks = 4, .family = "linear_llama", .linear = "scalar_gate", .microbatch = 2});
    p.pipeline_schedule = "zero_bubble", p.tensor = 1;
    all.push_back({.parallel = p, .ranks = 2, .family = "linear_llama", .linear = "delta", .microbatch = 2});
  }
  // LASP-2H: linear and softmax layers over the same contiguous order; states by each method, documents cut anywhere.
  const auto hybrid = [&](int64_t ranks, const char* states, const char* variant) {
    Layout layout{
        .parallel = P{.context = ranks}, .ranks = static_cast<int>(ranks), .family = "linear_llama", .linear = variant, .seq = 24};
    layout.parallel.context_method = "allgather";
    layout.parallel.context_order = "contiguous";
    layout.parallel.state_method = states;
    return layout;
  };
  for (const char* variant : {"basic", "retention", "scalar_gate", "diagonal_gate", "delta", "gated_delta", "kda"})
    all.push_back(hybrid(variant[0] == 'd' ? 4 : 3, "lasp2", variant));
  for (const char* states : {"lasp1", "zeco"}) {
    all.push_back(hybrid(2, states, "scalar_gate"));
    all.push_back(hybrid(4, states, "gated_delta"));
  }
  for (const char* variant : {"diagonal_gate", "gated_delta", "kda"}) {
    auto layout = hybrid(2, "lasp2", variant);
    layout.parallel.tensor = 2, layout.parallel.zero = 1;
    layout.ranks = 8, layout.microbatch = 3, layout.recompute = models::Recompute::selective;
    all.push_back(layout);
    layout = hybrid(2, "zeco", variant);
    layout.parallel.pipeline = 2, layout.parallel.pipeline_schedule = "zero_bubble";
    layout.ranks = 4, layout.microbatch = 3;
    all.push_back(layout);
    layout.parallel.pipeline_schedule = "1f1b", layout.parallel.state_method = "lasp2", layout.parallel.zero = 1;
    layout.ranks = 8, layout.recompute = models::Recompute::full;
    all.push_back(layout);
  }
  auto in_fp32 = hybrid(2, "lasp2", "scalar_gate");
  in_fp32.precision = "fp32";
  all.push_back(in_fp32);
  const auto mixture = [&](Layout layout) {
    layout.family = "zaya1";
    all.push_back(layout);
  };
  mixture({.parallel = P{.expert = 2}, .ranks = 2});
  mixture({.parallel = P{.expert = 4}, .ranks = 4, .tie = false});
  mixture({.parallel = P{.expert_tensor = 2}, .ranks = 2});
  mixture({.parallel = P{.expert_tensor = 3}, .ranks = 3, .recompute = models::Recompute::selective});
  mixture({.parallel = P{.expert = 2, .expert_tensor = 2}, .ranks = 4, .microbatch = 1});
  mixture({.parallel = P{.expert = 2, .zero = 3}, .ranks = 6, .recompute = models::Recompute::full});
  mixture({.parallel = P{.expert = 2, .zero = 0}, .ranks = 4, .optimizer = "adamw"});
  mixture({.parallel = P{.tensor = 2, .expert = 2}, .ranks = 2});
  mixture({.parallel = P{.tensor = 2, .expert = 4, .zero = 2}, .ranks = 4, .spread = true});
  mixture({.parallel = P{.tensor = 2, .expert = 2, .expert_tensor = 2, .zero = 3}, .ranks = 8});
  mixture({.parallel = P{.tensor = 4, .expert = 2, .zero = 1}, .ranks = 8, .microbatch = 3});
  // In fp32 with a routing that rounding cannot change.
  const auto replayed = [&](P parallel, int ranks, int64_t microbatch = 0) {
    mixture({.parallel = parallel, .ranks = ranks, .precision = "fp32", .microbatch = microbatch, .replayed = true});
  };
  replayed(P{.zero = 1}, 3);
  replayed(P{.zero = 3}, 2, 2);
  replayed(P{.tensor = 2, .zero = 2}, 4, 3);
  replayed(P{.context = 2}, 2);
  replayed(P{.expert = 2, .expert_tensor = 2}, 4);
  replayed(P{.tensor = 2, .expert = 4}, 4);
  replayed(P{.expert = 2, .tensor_sequence = 2}, 4);
  // Gradients are sent while backward still runs: in fp32, with larger buckets, in another order.
  for (const int64_t zero : {0, 1}) {
    replayed(P{.pipeline = 2, .zero = zero}, 4, 2);
    mixture({.parallel = P{.pipeline = 2, .zero = zero}, .ranks = 4, .microbatch = 2});
    all.push_back({.parallel = P{.pipeline = 2, .zero = zero}, .ranks = 4, .precision = "fp32", .microbatch = 2});
  }
  // State of its own for each row, of stacks of experts too.
  for (const int64_t zero : {0, 1, 2, 3}) all.push_back({.parallel = P{.zero = zero}, .ranks = 3, .optimizer = "normuon"});
  all.push_back({.parallel = P{.tensor = 2, .zero = 1}, .ranks = 4, .optimizer = "normuon"});
  all.push_back({.parallel = P{.tensor = 2, .zero = 0}, .ranks = 4, .optimizer = "normuon", .spread = true});
  mixture({.parallel = P{.expert = 2}, .ranks = 4, .optimizer = "normuon"});
  mixture({.parallel = P{.tensor = 2, .expert = 2}, .ranks = 4, .optimizer = "normuon"});
  mixture({.parallel = P{.zero = 1}, .ranks = 3, .precision = "fp32", .force_balance = true});
  mixture({.parallel = P{.tensor = 2, .expert = 2}, .ranks = 4, .precision = "fp32", .force_balance = true});
  all.push_back({.parallel = P{.zero = 1}, .ranks = 3, .precision = "fp32"});
  all.push_back({.parallel = P{.tensor = 2}, .ranks = 4, .precision = "fp32"});
  return all;
}

// One of each axis, method and family.
std::vector<Layout> emulated_layouts() {
  std::vector<Layout> some;
  std::set<std::string> seen;
  for (auto layout : layouts()) {
    const auto& p = layout.parallel;
    if (layout.ranks > 4 || layout.precision != "fp64" || (p.pipeline > 1 && p.pipeline_schedule == "gpipe")) continue;
    const auto kind = fmt::format("{} {} {} {} {} {} {} {}", layout.family, p.pipeline > 1,
                                  p.context > 1 ? p.context_method + p.state_method : "", p.tensor > 1, p.tensor_sequence > 1, p.expert > 1,
                                  p.expert_tensor > 1, layout.family == "linear_llama" ? layout.linear : "");
    if (!seen.insert(kind).second) continue;
    layout.emulated = true;
    some.push_back(layout);
  }
  return some;
}

// Buckets of parts of a tensor, of a layer, of all. The norm alone, which clips, is a sum in another order where ranks own other elements.
// Of a mixture a layer weighs the experts that a token takes: here as much as a dense layer.
TEST(CutDepth, weighs_experts_by_what_a_token_meets_of_them) {
  auto c = model_of({.ranks = 1, .family = "deepseek_v3", .top_k = 2});
  c.first_dense_layers = 2, c.experts = 8, c.expert_ffn = 16, c.ffn = 48, c.shared_expert_ffn = 16, c.vocab_size = 3;
  const auto pieces = cut_depth(c, 2);
  EXPECT_EQ(pieces[0].end, 2);
}

TEST(LayoutsWithBuckets, of_any_size_have_the_same_bits) {
  using P = mesh::ParallelConfig;
  for (const int64_t zero : {0, 1, 2, 3}) {
    for (Layout layout : {Layout{.parallel = P{.zero = zero}, .ranks = 3, .precision = "fp32", .optimizer = "adamw", .microbatch = 2},
                          Layout{.parallel = P{.zero = zero}, .ranks = 2, .precision = "bf16", .optimizer = "muon"},
                          Layout{.parallel = P{.tensor = 2, .zero = zero}, .ranks = 4, .precision = "fp32", .optimizer = "muon"}}) {
      constexpr int64_t kFewSteps = 3;
      layout.clip = 0;
      layout.bucket_mib = 1000;
      const auto expected = train(layout, kFewSteps);
      for (const double mib : {0.001, 0.01}) {
        layout.bucket_mib = mib;
        const auto got = train(layout, kFewSteps);
        EXPECT_EQ(got.losses, expected.losses) << name_of(layout) << " " << mib;
        for (size_t i = 0; i < got.norms.size(); ++i) EXPECT_NEAR(got.norms[i], expected.norms[i], 1e-5 * expected.norms[i]);
        ASSERT_EQ(got.last.size(), expected.last.size());
        for (const auto& [name, tensor] : expected.last)
          EXPECT_TRUE(at::equal(got.last.at(name), tensor)) << name_of(layout) << " " << mib << " " << name;
      }
    }
  }
}

// On streams that put everything off the ranks compute what they compute on the CPU, to the last bit.
TEST(EmulatedRanks, have_the_bits_of_ranks_on_the_cpu) {
  using P = mesh::ParallelConfig;
  const std::vector<Layout> layouts = {
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
INSTANTIATE_TEST_SUITE_P(All, Layouts, ::testing::ValuesIn(layouts()), [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace ingot::train
