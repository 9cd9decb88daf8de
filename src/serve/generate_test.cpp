// Generation on a tensor_sequence axis: the tokens, logits and cached keys of one rank alone. Ranks are threads.
#include "serve/generate.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "comm/world.h"
#include "kernels/differentiable.h"

namespace ingot::serve {
namespace {

constexpr int64_t kVocab = 48, kNew = 9;

struct Case {
  std::string family;
  int ranks;
  int64_t prompt;
  int64_t kv_heads = 12, window = 0, buckets = 1, batch = 1;
  bool zigzag = true, biases = false, tie = true;
  at::ScalarType dtype = at::kDouble;
};

std::string name_of(const Case& c) {
  return fmt::format("{}_{}_ranks_{}_tokens_{}_kv_heads{}{}{}{}{}{}", c.family, c.ranks, c.prompt, c.kv_heads,
                     c.window > 0 ? fmt::format("_window_{}", c.window) : "", c.buckets > 1 ? "_buckets" : "", c.batch > 1 ? "_batch" : "",
                     c.zigzag ? "" : "_contiguous", c.biases ? "_biases" : "", c.dtype == at::kDouble ? "" : "_fp32");
}

models::ModelConfig config_of(const Case& c) {
  models::ModelConfig m;
  m.family = c.family;
  m.layers = 3, m.hidden = 24, m.vocab_size = kVocab, m.heads = 24, m.kv_heads = c.kv_heads, m.head_dim = 4, m.ffn = 48;
  m.experts = 4, m.expert_ffn = 12, m.router_hidden = 8, m.rope_fraction = 0.5, m.init_std = 0.3;
  m.tie_embeddings = c.tie;
  m.attention_bias = m.mlp_bias = c.biases;
  if (c.window > 0) m.window = c.window, m.layer_types = {"full", "sliding", "full"};
  return m;
}

struct Generated {
  std::vector<at::Tensor> logits;  // after the prompt, and after each new token
  std::vector<at::Tensor> ids;
};

// What is drawn is fed again; the prompt comes in two parts when `cut` is positive.
Generated generated_by(models::Model& model, const Case& c, int64_t cut = 0) {
  model.allocate(c.dtype);
  model.initialise(7);
  const auto prompt = at::arange(c.batch * c.prompt).mul(31).add(5).remainder(kVocab - 1).view({c.batch, c.prompt});
  Generator generator(model);
  Generated made;
  if (cut > 0) generator.feed(prompt.narrow(1, 0, cut));
  made.logits.push_back(generator.feed(prompt.narrow(1, cut, c.prompt - cut)));
  for (int64_t i = 0; i < kNew; ++i) {
    made.ids.push_back(sample(made.logits.back(), {}, generator.length()));
    made.logits.push_back(generator.feed(made.ids.back().unsqueeze(1)));
  }
  EXPECT_EQ(generator.length(), c.prompt + kNew);
  return made;
}

parallel::Layout layout_of(const Case& c, comm::World& world) {
  parallel::Layout layout;
  auto* group = &world.everyone();
  layout.tensor_sequence = {.rank = world.rank(), .size = world.size(), .head_buckets = c.buckets, .group = group};
  layout.sequence = {{.rank = world.rank(), .size = world.size(), .zigzag = c.zigzag}, group, &parallel::kAllGather};
  return layout;
}

// Of few tokens a random model drafts some as it would choose them itself.
TEST(GenerationWithDrafts, gives_the_text_of_generation_without_greedy_or_drawn) {
  for (const char* family : {"llama", "qwen3", "zaya1", "deepseek_v3"})
    for (const int64_t window : {0, 6}) {
      auto config = config_of({.family = family, .ranks = 1, .prompt = 0, .kv_heads = 24, .window = window});
      config.vocab_size = 7, config.draft_block = 4, config.draft_mask_id = 6, config.init_std = 0.2;
      if (config.family == "deepseek_v3") {
        config.head_dim = 6, config.rope_head_dim = 2, config.value_head_dim = 3, config.kv_rank = 10, config.rope_fraction = 1;
        config.first_dense_layers = 3, config.layer_types = {}, config.window = 0;
      }
      const auto model = models::create_model(config);
      model->allocate(at::kDouble);
      model->initialise(11);
      DraftCounts all;
      for (const double temperature : {0.0, 1.1})
        for (uint64_t seed = 0; seed < 4; ++seed) {
          const SamplingOptions sampling{.temperature = temperature, .top_k = seed % 2 == 0 ? 0 : 3, .seed = seed};
          const std::vector<int64_t> prompt = {static_cast<int64_t>(seed % 6), 3, 1};
          for (const int64_t limit : {1, 2, 40}) {
            DraftCounts counts;
            const auto expected = generate(*model, prompt, limit, /*eos_id=*/seed == 3 ? 2 : -1, sampling);
            EXPECT_EQ(generate_with_drafts(*model, prompt, limit, seed == 3 ? 2 : -1, sampling, {}, &counts), expected)
                << family << " window " << window << " temperature " << temperature << " seed " << seed << " limit " << limit;
            EXPECT_LE(counts.taken, counts.drafted);
            all.passes += counts.passes, all.drafted += counts.drafted, all.taken += counts.taken;
          }
        }
      EXPECT_GT(all.taken, all.drafted / 20) << "hardly any draft was taken: little is tested";
    }
}

models::ModelConfig drafting(const char* family, int64_t window) {
  auto config = config_of({.family = family, .ranks = 1, .prompt = 0, .kv_heads = 12, .window = window});
  config.draft_block = 4, config.draft_mask_id = kVocab - 1;
  if (config.family == "deepseek_v3") {
    config.kv_heads = config.heads, config.head_dim = 6, config.rope_head_dim = 2, config.value_head_dim = 3, config.kv_rank = 10;
    config.rope_fraction = 1, config.first_dense_layers = 3, config.layer_types = {}, config.window = 0;
  }
  return config;
}

models::ForwardContext context_of_drafts(const at::Tensor& ids, const at::Tensor& starts) {
  models::ForwardContext context;
  context.sequences = std::make_shared<layers::Sequences>(ids.size(0), ids.size(1), starts, 0, at::kCPU);
  context.learns_drafts = true;
  context.draft_loss = at::zeros({1}, at::kDouble);
  return context;
}

// The drafts that training learns in one pass are those that generation makes behind each document's tokens before the block.
TEST(Drafts, are_in_training_what_generation_makes_of_each_prefix_and_have_its_gradients) {
  for (const auto& [family, window] : {std::pair{"llama", 0}, {"llama", 6}, {"zaya1", 0}, {"zaya1", 5}, {"deepseek_v3", 0}}) {
    const auto model = models::create_model(drafting(family, window));
    model->allocate(at::kDouble);
    model->initialise(5);
    const int64_t seq = 23, cut = 14;  // two documents
    const auto ids = at::arange(seq, at::kLong).mul(31).add(5).remainder(kVocab - 2).unsqueeze(0);
    const auto starts = at::arange(seq, at::kInt).ge(cut).to(at::kInt).mul(cut).unsqueeze(0);
    for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, {cut, seq}})
      for (int64_t block = begin; block < end; block += 4) {
        Generator generator(*model);
        if (block == begin) continue;  // generation has a token before its first draft
        const at::NoGradGuard no_grad;
        const auto drafted = at::log_softmax(generator.feed_and_draft(ids.narrow(1, begin, block - begin)), 2);
        for (int64_t at = block; at < std::min(block + 4, end); ++at) {
          if (block + 4 > end) continue;  // its last block ends with the document, and is shorter than those of generation
          auto targets = at::full_like(ids, -100);
          targets[0][at - 1] = ids[0][at];
          auto context = context_of_drafts(ids, starts);
          model->loss(ids, targets, 1, context);
          EXPECT_NEAR(context.draft_loss.item<double>(), -drafted[0][1 + at - block][ids[0][at]].item<double>(), 1e-9)
              << family << " token " << at;
        }
      }
    // One step along a direction of all parameters changes the loss by the gradient's share of it.
    auto targets = at::cat({ids.narrow(1, 1, seq - 1), ids.narrow(1, 0, 1)}, 1).clone();
    targets[0][cut - 1] = -100;
    const auto loss_at = [&] {
      auto context = context_of_drafts(ids, starts);
      return model->loss(ids, targets, 0.1, context);
    };
    kernels::backward({loss_at()});
    model->parameters().collect_gradients();
    double expected = 0;
    const double step = 1e-6;
    const at::NoGradGuard no_grad;
    std::vector<std::pair<at::Tensor, at::Tensor>> moves;
    for (const auto& p : model->parameters().all()) {
      if (!p->has_gradient) continue;
      const auto direction = at::sin(at::arange(p->elements(), at::kDouble) + static_cast<double>(p->name.size())).view(p->shape);
      expected += (direction * p->grad).sum().item<double>();
      moves.emplace_back(p->value.detach(), direction);
    }
    const auto moved = [&](double by) {
      for (const auto& [value, direction] : moves) value.add_(direction, by);
      return loss_at().item<double>();
    };
    const double above = moved(step), below = moved(-2 * step);
    EXPECT_NEAR((above - below) / (2 * step), expected, 1e-5 * (1 + std::abs(expected))) << family << " window " << window;
  }
}

TEST(GenerationWithDrafts, is_refused_without_drafts_and_of_encoders_altogether) {
  auto config = config_of({.family = "llama", .ranks = 1, .prompt = 0});
  const auto plain = models::create_model(config);
  EXPECT_THROW(generate_with_drafts(*plain, {1}, 4, -1, {}), base::ConfigError);
  config.bidirectional = true;
  const auto encoder = models::create_model(config);
  EXPECT_THROW(generate(*encoder, {1}, 4, -1, {}), base::ConfigError);
}

class GenerationOverRanks : public ::testing::TestWithParam<Case> {};

TEST_P(GenerationOverRanks, gives_the_tokens_and_logits_of_one_rank) {
  const auto& c = GetParam();
  const auto alone = generated_by(*models::create_model(config_of(c)), c);
  const double tolerance = c.dtype == at::kDouble ? 1e-11 : 1e-5;
  comm::run_ranks(c.ranks, [&](comm::World& world) {
    for (const int64_t cut : {int64_t{0}, c.prompt / 2}) {
      if (cut > 0 && c.prompt < 4) continue;
      const auto made = generated_by(*models::create_model(config_of(c), layout_of(c, world)), c, cut);
      ASSERT_EQ(made.logits.size(), alone.logits.size());
      for (size_t i = 0; i < made.logits.size(); ++i) {
        const auto& expected = alone.logits[i];
        EXPECT_LE((made.logits[i] - expected).abs().max().item<double>(), tolerance * expected.abs().max().item<double>())
            << "token " << i << " of rank " << world.rank() << ", prompt cut at " << cut;
        if (i < made.ids.size()) {
          EXPECT_TRUE(at::equal(made.ids[i], alone.ids[i])) << "token " << i << " of rank " << world.rank();
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, GenerationOverRanks,
                         ::testing::Values(Case{"llama", 2, 16}, Case{"llama", 3, 30}, Case{"llama", 4, 37}, Case{"llama", 8, 64, 8},
                                           Case{"llama", 2, 1}, Case{"llama", 4, 7}, Case{"llama", 4, 15},
                                           Case{.family = "llama", .ranks = 4, .prompt = 21, .kv_heads = 2},
                                           Case{.family = "llama", .ranks = 4, .prompt = 41, .kv_heads = 1},
                                           Case{.family = "llama", .ranks = 4, .prompt = 33, .window = 6},
                                           Case{.family = "llama", .ranks = 2, .prompt = 20, .window = 1},
                                           Case{.family = "llama", .ranks = 2, .prompt = 19, .buckets = 3, .batch = 3},
                                           Case{.family = "llama", .ranks = 3, .prompt = 25, .zigzag = false},
                                           Case{.family = "llama", .ranks = 4, .prompt = 18, .biases = true, .tie = false},
                                           Case{.family = "llama", .ranks = 2, .prompt = 70, .dtype = at::kFloat}, Case{"qwen3", 3, 30},
                                           Case{.family = "qwen3", .ranks = 4, .prompt = 21, .kv_heads = 2}, Case{"zaya1", 2, 16},
                                           Case{"zaya1", 3, 13}, Case{"zaya1", 4, 35}, Case{"zaya1", 2, 1}, Case{"zaya1", 4, 5},
                                           Case{.family = "zaya1", .ranks = 2, .prompt = 23, .window = 5, .batch = 2},
                                           Case{.family = "zaya1", .ranks = 4, .prompt = 26, .zigzag = false}),
                         [](const auto& info) { return name_of(info.param); });

TEST(GenerationOverRanks, a_new_token_moves_what_the_header_says_and_the_cache_grows_by_turns) {
  const Case c{.family = "llama", .ranks = 4, .prompt = 32, .batch = 2, .dtype = at::kFloat};
  const auto m = config_of(c);
  const int64_t q = m.heads * m.head_dim, w = m.kv_heads * m.head_dim, p = c.ranks, rows = c.batch, e = 4;
  comm::run_ranks(c.ranks, [&](comm::World& world) {
    auto model = models::create_model(m, layout_of(c, world));
    model->allocate(c.dtype);
    model->initialise(7);
    Generator generator(*model);
    generator.feed(at::zeros({rows, c.prompt}, at::kLong));
    const auto received = [&] {
      int64_t bytes = 0;
      for (const auto& [axis, traffic] : world.counters().totals()) bytes += traffic.received_bytes;
      return bytes;
    };
    const auto before = received();
    generator.feed(at::zeros({rows, 1}, at::kLong));
    const int64_t attention = q + 2 * w + q + m.heads;       // gathered, and partial softmaxes
    const int64_t sums = 2 * m.hidden * (2 * m.layers + 1);  // two a layer, and the embedding's
    const int64_t wanted = (m.layers * attention + sums + m.vocab_size) * rows * e * (p - 1) / p;
    EXPECT_EQ(received() - before, wanted);
    for (int i = 0; i < 7; ++i) generator.feed(at::zeros({rows, 1}, at::kLong));
    for (const auto& cache : generator.caches()) EXPECT_EQ(cache.key_values.length(), (c.prompt + 8) / p);
  });
}

// All of the vocabulary sorted, as the definition of top-k and top-p has it.
int64_t drawn_from_all_sorted(const at::Tensor& logits, const SamplingOptions& options, double uniform) {
  const auto values = logits.to(at::kDouble);
  auto [sorted, order] = values.sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  auto weights = ((sorted - sorted[0]) / options.temperature).exp();
  if (options.top_k > 0) weights = weights.narrow(0, 0, std::min(options.top_k, weights.size(0)));
  const auto sums = weights.cumsum(0);
  const auto kept = (sums < options.top_p * sums[-1]).sum().item<int64_t>() + 1;
  const double draw = uniform * sums[std::min(kept, sums.size(0)) - 1].item<double>();
  return order[std::min((sums <= draw).sum().item<int64_t>(), kept - 1)].item<int64_t>();
}

TEST(Sample, draws_as_if_the_whole_vocabulary_were_sorted) {
  at::manual_seed(3);
  for (const int64_t vocab : {1, 7, 64, 65, 3000}) {
    const auto logits = (2 * at::randn({1, vocab})).mul(8).round().div(8);  // with equal ones
    for (const int64_t top_k : {0, 1, 5, 100})
      for (const double top_p : {0.0, 0.3, 0.95, 1.0})
        for (const int64_t position : {0, 1, 2, 3, 4, 5}) {
          const SamplingOptions options{.temperature = 0.8, .top_k = top_k, .top_p = top_p, .seed = 11};
          const double uniform = base::uniform_at(base::stream_key(options.seed, "sample"), static_cast<uint64_t>(position * 65536));
          ASSERT_EQ(sample(logits, options, position).item<int64_t>(), drawn_from_all_sorted(logits[0], options, uniform))
              << vocab << " " << top_k << " " << top_p << " " << position;
        }
  }
}

TEST(Sample, refuses_logits_that_are_not_numbers) {
  auto logits = at::zeros({1, 100});
  logits[0][40] = std::nanf("");
  EXPECT_THROW(sample(logits, {.temperature = 1}, 0), base::Error);
}

}  // namespace
}  // namespace ingot::serve
