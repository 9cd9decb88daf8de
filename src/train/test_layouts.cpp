#include "train/test_layouts.h"

#include <fmt/format.h>

#include <map>
#include <ostream>
#include <set>

#include "base/error.h"
#include "models/model.h"
#include "train/parallel_model.h"

namespace ingot::train {

models::ModelConfig model_of(const TestLayout& layout) {
  auto sizes = models::small_sizes();
  sizes.hidden = 24, sizes.vocab_size = 48, sizes.heads = 24, sizes.kv_heads = layout.kv_heads, sizes.head_dim = 4, sizes.ffn = 48;
  sizes.expert_ffn = 12, sizes.router_hidden = 8, sizes.gate_rank = 3;
  auto c = models::small_model(layout.family, sizes);
  if (!layout.linear.empty())
    c.linear_attention = layout.linear, c.feature_map = layout.linear.ends_with("delta") || layout.linear == "kda" ? "l2" : "silu";
  if (layout.window > 0) c.window = layout.window, c.layer_types = {"full", "sliding", "sliding", "full"};
  c.tie_embeddings = layout.tie;
  c.attention_bias = layout.biases, c.mlp_bias = layout.biases && layout.family != "gpt_oss";
  c.force_balance = layout.force_balance;
  if (layout.top_k > 0) c.top_k = layout.top_k;
  c.mixers = layout.mixers, c.feed_forwards = layout.feed_forwards;
  if (layout.family == "fla" && layout.linear == "kda") c.linear_heads = 12, c.linear_key_heads = 6, c.gate_rank = c.output_gate_rank = 4;
  if (layout.is_special) {
    c.residual_scale = 0.7, c.logit_scale = 0.5, c.logit_cap = 2, c.mup_base_hidden = c.hidden / 2;
  }
  if (layout.longrope) {
    const auto pairs = static_cast<size_t>(c.resolved_head_dim() / 2);
    c.rope_scaling = "longrope", c.rope_original_positions = layout.seq - 1;
    c.rope_short_factors.assign(pairs, 1), c.rope_long_factors.assign(pairs, 3);
  }
  c.mtp_layers = layout.mtp;
  c.lora_rank = layout.lora;
  c.bidirectional = layout.encoder, c.draft_block = layout.draft, c.draft_mask_id = 47;
  if (layout.encoder) c.short_convolution = 0;
  // The norm on what a head of few channels reads turns its direction with every GEMM near 0: rounding would grow step by step.
  const auto model = models::create_model(c);
  for (int64_t layer = 0; layer < c.layers; ++layer)
    if (model->mixes_linearly(layer)) c.norm_eps = 1;
  return c;
}

std::string name_of(const TestLayout& l) {
  auto name = fmt::format("{}_{}_{}", l.family, l.precision, l.optimizer);
  if (l.family == "linear_llama" || l.family == "fla") name += "_" + model_of(l).linear_attention;
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
  if (l.variable) name += "_variable";
  if (l.encoder) name += "_encoder";
  if (l.draft > 0) name += fmt::format("_drafts{}", l.draft);
  if (l.longrope) name += "_longrope";
  if (l.mtp > 0) name += fmt::format("_mtp{}", l.mtp);
  if (!l.balance.empty()) name += "_balance_over_" + l.balance;
  if (l.kv_heads != 12) name += fmt::format("_kv{}", l.kv_heads);
  if (l.top_k > 1) name += fmt::format("_top{}", l.top_k);
  for (const auto* parts : {&l.mixers, &l.feed_forwards})
    if (!parts->empty()) name += fmt::format("_{}", fmt::join(*parts, "_"));
  return name;
}

void PrintTo(const TestLayout& layout, std::ostream* out) { *out << name_of(layout); }

namespace {

bool is_taken(const TestLayout& layout) {
  try {
    const auto config = model_of(layout);
    models::create_model(config, layout_of(mesh::Mesh(layout.parallel, 0, layout.ranks), layout.parallel, config));
    return true;
  } catch (const base::ConfigError&) {
    return false;
  }
}

// Each family over every axis that its parts allow (docs/support.md names those that they refuse).
std::vector<TestLayout> layouts_of_every_family() {
  using P = mesh::ParallelConfig;
  std::vector<TestLayout> all;
  for (const auto& family : models::family_names()) {
    if (family == "llama" || family == "zaya1") continue;  // which have more below
    for (auto p : {P{.zero = 1}, P{.zero = 3}, P{.tensor = 2}, P{.tensor_sequence = 2}, P{.pipeline = 2, .context = 2}, P{.expert = 2}}) {
      const bool is_linear = model_of({.family = family}).norm_eps == 1;
      if (p.context > 1 && is_linear) p.context_order = "contiguous";
      const TestLayout layout{.parallel = p,
                              .ranks = p.zero == 3      ? 3
                                       : p.pipeline > 1 ? 4
                                                        : 2,
                              .family = family,
                              .recompute = p.zero == 3 ? models::Recompute::full : models::Recompute::none,
                              .microbatch = p.zero == 3 ? 0 : 3,
                              .seq = 24};
      if (is_taken(layout)) all.push_back(layout);
    }
  }
  return all;
}

// Adapters, pairs of answers, encoders and drafts, each where it is not refused.
std::vector<TestLayout> fine_tuned_layouts() {
  using P = mesh::ParallelConfig;
  const auto pipeline = [](int64_t stages, const char* schedule) {
    P p{.pipeline = stages};
    p.pipeline_schedule = schedule;
    return p;
  };
  std::vector<TestLayout> all;
  for (const int64_t zero : {1, 3})
    all.push_back(
        {.parallel = P{.zero = zero}, .ranks = 3, .recompute = models::Recompute::full, .microbatch = 2, .lora = 3, .pairs = true});
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
      all.push_back({.parallel = p,
                     .ranks = p.pipeline > 1 || p.tensor > 1 ? 4 : 3,
                     .family = family,
                     .microbatch = 2,
                     .biases = family == std::string("llama"),
                     .top_k = family == std::string("llama") ? 1 : 2,
                     .qk_clip = 3});
  all.push_back(
      {.parallel = P{.zero = 1}, .ranks = 3, .recompute = models::Recompute::full, .microbatch = 2, .window = 5, .encoder = true});
  all.push_back({.parallel = P{.tensor = 2, .zero = 0}, .ranks = 2, .optimizer = "adamw", .encoder = true});
  all.push_back({.parallel = pipeline(2, "1f1b"), .ranks = 2, .microbatch = 3, .encoder = true});
  all.push_back({.parallel = P{.context = 2, .context_order = "contiguous"},
                 .ranks = 4,
                 .family = "linear_llama",
                 .linear = "basic",
                 .mixers = {"linear"},
                 .encoder = true});
  all.push_back({.parallel = P{.zero = 3}, .ranks = 3, .recompute = models::Recompute::full, .microbatch = 2, .window = 5, .draft = 3});
  all.push_back({.parallel = P{.tensor = 2, .zero = 1}, .ranks = 4, .optimizer = "adamw", .lora = 0, .draft = 4});
  all.push_back({.parallel = P{.tensor = 2, .zero = 1}, .ranks = 4, .family = "zaya1", .microbatch = 3, .draft = 4});
  all.push_back({.parallel = experts, .ranks = 2, .family = "qwen3_moe", .top_k = 2, .draft = 5, .balance = "batch"});
  all.push_back({.parallel = P{.zero = 3}, .ranks = 2, .family = "gemma2", .microbatch = 2, .draft = 3});
  P whole_tokens{.tensor = 2, .zero = 1};
  whole_tokens.sequence_parallel = false;
  for (const int64_t zero : {1, 3})
    all.push_back({.parallel = P{.zero = zero},
                   .ranks = 3,
                   .recompute = zero == 3 ? models::Recompute::full : models::Recompute::none,
                   .microbatch = 2,
                   .window = 5,
                   .mtp = 1,
                   .variable = true});
  all.push_back({.parallel = whole_tokens, .ranks = 4, .microbatch = 3, .pairs = true, .variable = true});
  all.push_back({.parallel = P{.zero = 3}, .ranks = 3, .family = "linear_llama", .microbatch = 2, .seq = 24, .variable = true});
  all.push_back({.parallel = P{.zero = 3}, .ranks = 2, .microbatch = 2, .draft = 4, .variable = true});
  all.push_back({.parallel = experts, .ranks = 2, .family = "zaya1", .microbatch = 3, .seq = 24, .variable = true});
  all.push_back({.parallel = experts, .ranks = 2, .family = "qwen3_moe", .top_k = 2, .variable = true, .balance = "batch"});
  all.push_back({.parallel = P{.tensor = 2, .zero = 1}, .ranks = 2, .family = "gemma2", .draft = 4});
  return all;
}

// By day every other of the layouts that differ only in family or variant, and of the next such layout the rest; at night all.
void leave_every_other_for_the_night(std::vector<TestLayout>& all) {
  std::map<std::string, size_t> numbers;
  std::vector<std::vector<TestLayout*>> kinds;
  for (auto& layout : all) {
    auto kind = name_of(layout).substr(layout.family.size());
    if (layout.family == "linear_llama" || layout.family == "fla") {
      const auto variant = "_" + model_of(layout).linear_attention;
      kind.erase(kind.find(variant), variant.size());
    }
    const auto [number, is_new] = numbers.emplace(kind, kinds.size());
    if (is_new) kinds.emplace_back();
    kinds[number->second].push_back(&layout);
  }
  for (size_t kind = 0; kind < kinds.size(); ++kind)
    for (size_t i = 0; kinds[kind].size() > 1 && i < kinds[kind].size(); ++i) kinds[kind][i]->by_night = (kind + i) % 2 != 0;
}

}  // namespace

std::vector<TestLayout> test_layouts() {
  using P = mesh::ParallelConfig;
  auto all = layouts_of_every_family();
  for (auto& layout : fine_tuned_layouts()) all.push_back(std::move(layout));
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
  // Capped scores by every method, and rotation by the length of the whole row, which no rank has.
  for (const char* method : {"bidirectional_ring", "allgather", "ulysses"}) {
    P p{.context = 2};
    p.context_method = method;
    all.push_back({.parallel = p, .ranks = 2, .family = "gemma2", .seq = 24});
  }
  for (const auto& p : {P{.zero = 3}, P{.context = 2}, P{.tensor = 2}, P{.tensor_sequence = 2}, P{.pipeline = 2}})
    all.push_back({.parallel = p, .ranks = 2, .family = "phi3", .microbatch = p.zero == 3 ? 0 : 3, .seq = 24, .longrope = true});
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
  // Norms of queries and keys; of 1 + weight; neighbours that share a head of keys.
  for (const bool sharded : {true, false})
    all.push_back({.parallel = P{.tensor = 3, .sequence_parallel = sharded}, .ranks = 6, .family = "qwen3"});
  all.push_back({.parallel = P{.tensor_sequence = 4}, .ranks = 4, .family = "qwen3", .seq = 24, .kv_heads = 2});
  all.push_back({.parallel = P{.tensor = 2, .sequence_parallel = false}, .ranks = 2, .family = "gemma3_text", .microbatch = 3, .seq = 24});
  all.push_back({.parallel = P{.tensor = 2, .expert = 2}, .ranks = 2, .family = "mixtral"});
  // CCA beside softmax attention.
  for (const auto& p : {P{.zero = 1}, P{.context = 2}, P{.tensor = 2}, P{.tensor_sequence = 2}, P{.expert = 2}, P{.pipeline = 2}})
    all.push_back({.parallel = p, .ranks = 2, .family = "zaya1", .microbatch = 3, .seq = 24, .mixers = {"cca", "softmax"}});
  // Latents, which are made between layers; an expert for all tokens; sinks, which lie with their heads; experts with biases; a head of
  // keys for several of values, one norm for all heads, gated attention, a gated expert for all tokens.
  for (const std::string family : {"deepseek_v3", "gpt_oss", "qwen3_next", "kimi_linear"}) {
    const bool has_sinks = family == "gpt_oss", is_linear = family == "qwen3_next" || family == "kimi_linear";
    for (const auto& p :
         {P{.tensor = 2, .expert = 2}, P{.tensor = 3}, P{.pipeline = 2, .expert = 2}, P{.context = 2, .context_method = "ulysses"}})
      if (p.context == 1 || !is_linear)
        all.push_back({.parallel = p,
                       .ranks = p.pipeline > 1 ? 4 : std::max<int>(2, static_cast<int>(p.tensor)),
                       .family = family,
                       .microbatch = 3,
                       .window = has_sinks ? 5 : 0,
                       .biases = has_sinks && p.tensor != 3});
    if (family == "deepseek_v3" || family == "qwen3_next")
      all.push_back({.parallel = P{.tensor = 2, .sequence_parallel = false}, .ranks = 2, .family = family, .feed_forwards = {"mlp"}});
  }
  // Predictors of further tokens, capped logits and their losses, multipliers, and learning rates by width.
  for (const auto& p : {P{.context = 2}, P{.tensor = 2, .expert = 2}, P{.tensor_sequence = 2}, P{.tensor = 3}, P{.pipeline = 2},
                        P{.zero = 1}, P{.zero = 3}})
    for (const char* family : {"deepseek_v3", "granite"})
      if (family != std::string("deepseek_v3") || p.tensor_sequence == 1)
        all.push_back({.parallel = p.expert > 1 && family == std::string("granite") ? P{.tensor = 2, .sequence_parallel = false} : p,
                       .ranks = std::max<int>(2, static_cast<int>(p.tensor)),
                       .family = family,
                       .optimizer = p.zero == 1 ? "muon" : "adamw",
                       .recompute = p.zero == 3 ? models::Recompute::full : models::Recompute::none,
                       .microbatch = 3,
                       .top_k = family == std::string("granite") ? 1 : 2,
                       .is_special = true,
                       .mtp = 2});
  for (const char* schedule : {"zero_bubble", "interleaved"}) {
    P p{.pipeline = 2, .zero = 1};
    p.pipeline_schedule = schedule, p.pipeline_chunks = schedule[0] == 'i' ? 2 : 1;
    for (const char* family : {"deepseek_v3", "zaya1"})
      all.push_back({.parallel = p, .ranks = 4, .family = family, .microbatch = 3, .tie = family == std::string("zaya1"), .mtp = 2});
  }
  // Losses of routers look at tokens of other ranks.
  for (const auto& p :
       {P{.zero = 1}, P{.context = 2}, P{.tensor = 2, .expert = 2}, P{.pipeline = 2, .expert = 2}, P{.tensor_sequence = 2}}) {
    const int ranks = p.pipeline > 1 || p.zero == 1 ? 4 : 2;
    for (const char* over : {"sequence", "batch"})
      if (over != std::string("batch") || p.pipeline == 1)
        all.push_back({.parallel = p,
                       .ranks = ranks,
                       .family = "mixtral",
                       .recompute = p.context == 2 ? models::Recompute::full : models::Recompute::selective,
                       .microbatch = over == std::string("batch") ? 0 : 3,
                       .top_k = 2,
                       .balance = over});
    all.push_back({.parallel = p,
                   .ranks = ranks,
                   .family = p.tensor_sequence == 1 ? "deepseek_v3" : "mixtral",
                   .microbatch = 3,
                   .top_k = 2,
                   .balance = "microbatch"});
  }
  all.push_back({.parallel = P{.context = 2}, .ranks = 4, .family = "zaya1", .top_k = 2, .balance = "batch"});
  // Several experts for a token; parts that no family has together.
  all.push_back({.parallel = P{.context = 2, .expert = 2}, .ranks = 2, .family = "olmoe", .top_k = 2});
  all.push_back({.parallel = P{.tensor = 2, .expert = 2, .expert_tensor = 2}, .ranks = 4, .family = "qwen3_moe", .top_k = 2});
  all.push_back({.parallel = P{.pipeline = 2, .expert = 2}, .ranks = 4, .family = "zaya1", .microbatch = 3, .top_k = 2});
  for (const auto& p :
       {P{.zero = 1}, P{.tensor = 2}, P{.pipeline = 2}, P{.expert = 2, .zero = 1}, P{.context = 2, .context_order = "contiguous"}})
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
    for (const auto& p : {P{.tensor = 2}, P{.context = 2, .context_order = "contiguous"}})
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
    TestLayout layout{
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
  const auto mixture = [&](TestLayout layout) {
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
  for (const int64_t zero : {0, 1, 3}) all.push_back({.parallel = P{.zero = zero}, .ranks = 3, .optimizer = "dion"});
  all.push_back({.parallel = P{.tensor = 2, .zero = 1}, .ranks = 4, .optimizer = "dion"});
  mixture({.parallel = P{.tensor = 2, .expert = 2}, .ranks = 4, .optimizer = "dion"});
  for (const int64_t zero : {0, 1, 2, 3}) all.push_back({.parallel = P{.zero = zero}, .ranks = 3, .optimizer = "normuon"});
  all.push_back({.parallel = P{.tensor = 2, .zero = 1}, .ranks = 4, .optimizer = "normuon"});
  all.push_back({.parallel = P{.tensor = 2, .zero = 0}, .ranks = 4, .optimizer = "normuon", .spread = true});
  mixture({.parallel = P{.expert = 2}, .ranks = 4, .optimizer = "normuon"});
  mixture({.parallel = P{.tensor = 2, .expert = 2}, .ranks = 4, .optimizer = "normuon"});
  mixture({.parallel = P{.zero = 1}, .ranks = 3, .precision = "fp32", .force_balance = true});
  mixture({.parallel = P{.tensor = 2, .expert = 2}, .ranks = 4, .precision = "fp32", .force_balance = true});
  all.push_back({.parallel = P{.zero = 1}, .ranks = 3, .precision = "fp32"});
  all.push_back({.parallel = P{.tensor = 2}, .ranks = 4, .precision = "fp32"});
  leave_every_other_for_the_night(all);
  return all;
}

// One of each axis, method and family together. What brings nothing new by itself waits for the night.
std::vector<TestLayout> emulated_layouts() {
  std::vector<TestLayout> some;
  std::set<std::string> seen, parts_seen;
  for (auto layout : test_layouts()) {
    const auto& p = layout.parallel;
    if (layout.ranks > 4 || layout.precision != "fp64" || (p.pipeline > 1 && p.pipeline_schedule == "gpipe")) continue;
    const auto linear = layout.family == "linear_llama" ? layout.linear : std::string(),
               context = p.context > 1 ? p.context_method + p.state_method : std::string();
    const auto kind = fmt::format("{} {} {} {} {} {} {} {}", layout.family, p.pipeline > 1, context, p.tensor > 1, p.tensor_sequence > 1,
                                  p.expert > 1, p.expert_tensor > 1, linear);
    if (!seen.insert(kind).second) continue;
    layout.emulated = layout.by_night = true;
    for (const std::string& part : {layout.family, linear, context, p.pipeline > 1 ? p.pipeline_schedule : std::string(),
                                    std::string(p.tensor > 1 ? "tensor" : ""), std::string(p.tensor_sequence > 1 ? "tensor_sequence" : ""),
                                    std::string(p.expert > 1 ? "expert" : ""), std::string(p.expert_tensor > 1 ? "slices" : "")})
      if (parts_seen.insert(part).second) layout.by_night = false;
    some.push_back(layout);
  }
  return some;
}

}  // namespace ingot::train
