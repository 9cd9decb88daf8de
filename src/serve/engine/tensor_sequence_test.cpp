// Texts continued over a tensor_sequence axis: the logits and cached keys of one rank alone. Ranks are threads.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/world.h"
#include "models/family.h"
#include "serve/engine/runner.h"
#include "serve/load_model.h"

namespace ingot::serve {
namespace {

constexpr int64_t kVocab = 48, kNew = 9;

struct Case {
  std::string family;
  int ranks;
  std::vector<int64_t> prompts;  // of texts side by side
  int64_t kv_heads = 12, window = 0;
  bool biases = false, tie = true;
  at::ScalarType dtype = at::kDouble;
};

std::string name_of(const Case& c) {
  std::string prompts;
  for (const int64_t tokens : c.prompts) prompts += fmt::format("_{}", tokens);
  return fmt::format("{}_{}_ranks{}_tokens_{}_kv_heads{}{}{}", c.family, c.ranks, prompts, c.kv_heads,
                     c.window > 0 ? fmt::format("_window_{}", c.window) : "", c.biases ? "_biases" : "",
                     c.dtype == at::kDouble ? "" : "_fp32");
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

std::unique_ptr<models::Model> model_of(const Case& c, const parallel::Layout& layout = {}) {
  auto model = models::create_model(config_of(c), layout);
  model->allocate(c.dtype);
  model->initialise(7);
  return model;
}

// Logits behind each token, by text, of prompts that are fed in pieces and of new tokens one by one; some tokens in between are taken back.
std::vector<std::vector<float>> logits_of(models::Model& model, const Case& c, int64_t piece) {
  const at::NoGradGuard no_grad;
  Runner runner(model, kernels::WeightFormat::fp32, /*few_tokens=*/0);
  std::vector<CachedText> texts;
  for (size_t i = 0; i < c.prompts.size(); ++i) texts.emplace_back(model.new_caches());
  const auto id_at = [&](size_t text, int64_t position) { return (31 * position + 5 * static_cast<int64_t>(text) + 3) % (kVocab - 1); };
  std::vector<std::vector<float>> logits(texts.size());
  for (;;) {
    std::vector<Piece> pieces;
    std::vector<size_t> of_text;
    for (size_t text = 0; text < texts.size(); ++text) {
      const int64_t prompt = c.prompts[text], fed = texts[text].fed, left = prompt + kNew - fed;
      if (left == 0) continue;
      const int64_t count = fed < prompt ? std::min(piece, prompt - fed) : 1;
      Piece next{.text = &texts[text], .ids = {}, .rows = count};
      for (int64_t i = 0; i < count; ++i) next.ids.push_back(id_at(text, fed + i));
      next.ids.insert(next.ids.end(), 3, kVocab - 1);  // drafts that turn out to be wrong
      next.rows += 3;
      pieces.push_back(std::move(next));
      of_text.push_back(text);
    }
    if (pieces.empty()) return logits;
    auto all = runner.run(pieces);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto rows = all.first(static_cast<size_t>(pieces[i].rows * kVocab));
      all = all.subspan(rows.size());
      auto& own = logits[of_text[i]];
      own.insert(own.end(), rows.begin(), rows.end() - 3 * kVocab);
      pieces[i].text->forget_behind(pieces[i].text->fed - 3);
    }
  }
}

class TextsOverTensorSequence : public ::testing::TestWithParam<Case> {};

TEST_P(TextsOverTensorSequence, have_the_logits_of_one_rank) {
  const auto& c = GetParam();
  const auto expected = logits_of(*model_of(c), c, 1 << 20);
  comm::run_ranks(c.ranks, [&](comm::World& world) {
    const auto model = model_of(c, layout_over(world.everyone(), "tensor_sequence"));
    for (const int64_t piece : {int64_t{1} << 20, int64_t{23}}) {
      const auto got = logits_of(*model, c, piece);
      for (size_t text = 0; text < got.size(); ++text) {
        ASSERT_EQ(got[text].size(), expected[text].size());
        float largest = 0;
        for (const float x : expected[text]) largest = std::max(largest, std::abs(x));
        for (size_t i = 0; i < got[text].size(); ++i)
          ASSERT_NEAR(got[text][i], expected[text][i], 1e-5 * largest)
              << "text " << text << " token " << i / kVocab << " rank " << world.rank() << ", pieces of " << piece;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, TextsOverTensorSequence,
                         ::testing::Values(Case{"llama", 2, {70, 1, 40}}, Case{"llama", 3, {100, 33}}, Case{"llama", 4, {150, 7, 64}},
                                           Case{"llama", 8, {64, 300}, 8},
                                           Case{.family = "llama", .ranks = 4, .prompts = {21, 141}, .kv_heads = 2},
                                           Case{.family = "llama", .ranks = 4, .prompts = {133}, .window = 6},
                                           Case{.family = "llama", .ranks = 2, .prompts = {20, 90}, .window = 1},
                                           Case{.family = "llama", .ranks = 2, .prompts = {200}, .window = 70},
                                           Case{.family = "llama", .ranks = 4, .prompts = {18, 50}, .biases = true, .tie = false},
                                           Case{.family = "llama", .ranks = 2, .prompts = {70}, .dtype = at::kFloat},
                                           Case{"qwen3", 3, {130, 2}}, Case{"zaya1", 2, {16, 80}}, Case{"zaya1", 3, {13, 1, 111}},
                                           Case{"zaya1", 4, {135}}, Case{.family = "zaya1", .ranks = 2, .prompts = {123, 5}, .window = 5}),
                         [](const auto& info) { return name_of(info.param); });

TEST(TextsOverTensorSequence, a_token_moves_what_the_header_says_and_caches_grow_by_turns) {
  const Case c{.family = "llama", .ranks = 4, .prompts = {}, .dtype = at::kFloat};
  const auto m = config_of(c);
  const int64_t q = m.heads * m.head_dim, w = m.kv_heads * m.head_dim, p = c.ranks, e = 4, prompt = 5 * kernels::kPageTokens;
  comm::run_ranks(c.ranks, [&](comm::World& world) {
    const auto model = model_of(c, layout_over(world.everyone(), "tensor_sequence"));
    const at::NoGradGuard no_grad;
    Runner runner(*model, kernels::WeightFormat::fp32, 32);
    CachedText text(model->new_caches());
    const auto bytes_of = [&](int64_t tokens) {
      const auto received = [&] {
        int64_t bytes = 0;
        for (const auto& [axis, traffic] : world.counters().totals()) bytes += traffic.received_bytes;
        return bytes;
      };
      const auto before = received();
      const Piece piece{.text = &text, .ids = std::vector<int64_t>(static_cast<size_t>(tokens), 1), .rows = 1};
      runner.run({&piece, 1});
      return received() - before;
    };
    const auto wanted = [&](int64_t tokens) {
      const int64_t attention = q + 2 * w + q + m.heads;       // gathered, and partial softmaxes
      const int64_t sums = 2 * m.hidden * (2 * m.layers + 1);  // two a layer, and the embedding's
      return ((m.layers * attention + sums) * tokens + m.vocab_size) * e * (p - 1) / p;
    };
    EXPECT_EQ(bytes_of(prompt), wanted(prompt));
    EXPECT_EQ(bytes_of(1), wanted(1));
    for (const auto& cache : text.caches) {
      EXPECT_EQ(cache.key_values.length(), prompt + 1);
      EXPECT_EQ(cache.key_values.pages().length, kernels::kPageTokens * (world.rank() == 0 ? 2 : 1) + (world.rank() == 1 ? 1 : 0));
    }
  });
}

}  // namespace
}  // namespace ingot::serve
