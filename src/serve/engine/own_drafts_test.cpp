// Drafts that a model makes itself (model.draft_block): what training teaches is what generation does, and they leave texts as they are.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/test_night.h"
#include "comm/world.h"
#include "kernels/differentiable.h"
#include "models/family.h"
#include "serve/engine/engine.h"
#include "serve/engine/plain_text.h"
#include "serve/load_model.h"

namespace ingot::serve {
namespace {

constexpr int64_t kVocab = 48;

models::ModelConfig drafting(const std::string& family, int64_t window, int64_t kv_heads = 12) {
  models::ModelConfig config;
  config.family = family;
  config.layers = 3, config.hidden = 24, config.vocab_size = kVocab, config.heads = 24, config.kv_heads = kv_heads, config.head_dim = 4;
  config.ffn = 48, config.experts = 4, config.expert_ffn = 12, config.router_hidden = 8, config.rope_fraction = 0.5, config.init_std = 0.3;
  if (window > 0) config.window = window, config.layer_types = {"full", "sliding", "full"};
  config.draft_block = 4, config.draft_mask_id = kVocab - 1;
  if (family == "deepseek_v3") {
    config.kv_heads = config.heads, config.head_dim = 6, config.rope_head_dim = 2, config.value_head_dim = 3, config.kv_rank = 10;
    config.rope_fraction = 1, config.first_dense_layers = 3, config.layer_types = {}, config.window = 0;
  }
  return config;
}

// Of few tokens a random model drafts some as it would choose them itself.
models::ModelConfig guessing(const std::string& family, int64_t window) {
  auto config = drafting(family, window, 24);
  config.vocab_size = 7, config.draft_mask_id = 6, config.init_std = 0.2;
  return config;
}

std::vector<int64_t> read(Text& text) {
  std::vector<int64_t> ids;
  for (auto ended = Ended::not_yet; ended == Ended::not_yet;) {
    const auto news = text.wait(std::chrono::milliseconds(60000));
    for (const auto& token : news.tokens) ids.push_back(token.id);
    ended = news.ended;
  }
  EXPECT_EQ(text.failure(), "");
  return ids;
}

struct Asked {
  TextRequest request;
  std::vector<int64_t> expected;
};

std::vector<Asked> all_kinds_of_texts(models::Model& model) {
  std::vector<Asked> all;
  for (const double temperature : {0.0, 1.1})
    for (uint64_t seed = 0; seed < 4; ++seed)
      for (const int64_t limit : {1, 2, 25}) {
        TextRequest request{.prompt = {static_cast<int64_t>(seed % 6), 3, 1}, .most_tokens = limit};
        request.sampling = {.temperature = temperature, .top_k = seed % 2 == 0 ? 0 : 3, .seed = seed};
        if (seed == 3) request.stop_ids = {2};
        all.push_back({request, plain_text(model, request.prompt, limit, seed == 3 ? 2 : -1, request.sampling)});
      }
  return all;
}

void expect_texts_as_asked(Engine& engine, const std::vector<Asked>& all, const std::string& what) {
  std::vector<TextRequest> requests;
  for (const auto& asked : all) requests.push_back(asked.request);
  const auto texts = engine.submit_all(std::move(requests));
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(read(*texts[i]), all[i].expected) << what << " text " << i;
  const auto counts = engine.counts();
  EXPECT_LE(counts.drafts_taken, counts.drafted);
  EXPECT_GT(counts.drafts_taken, counts.drafted / 20) << what << ": hardly any draft was taken: little is tested";
}

TEST(OwnDrafts, leave_texts_as_they_are_greedy_or_drawn_alone_or_side_by_side) {
  for (const auto dtype : {at::kDouble, at::kFloat})
    for (const char* family : {"llama", "qwen3", "zaya1", "deepseek_v3"})
      for (const int64_t window : {0, 6}) {
        if (!base::tests_run_at_night() && (window == 0) != (dtype == at::kDouble)) continue;  // each of both, half of the pairs
        const auto model = models::create_model(guessing(family, window));
        model->allocate(dtype);
        model->initialise(11);
        const auto all = all_kinds_of_texts(*model);
        Engine engine(*model, {.most_texts = dtype == at::kFloat ? 5 : 1, .drafts_itself = true});
        expect_texts_as_asked(engine, all, fmt::format("{} window {} of {}", family, window, at::toString(dtype)));
      }
}

TEST(OwnDrafts, are_those_of_one_rank_over_a_tensor_axis) {
  auto config = guessing("llama", 6);
  config.vocab_size = 8;  // which two ranks can share
  const auto alone = models::create_model(config);
  alone->allocate(at::kDouble);
  alone->initialise(11);
  const auto all = all_kinds_of_texts(*alone);
  comm::run_ranks(2, [&](comm::World& world) {
    const auto model = models::create_model(config, layout_over(world.everyone(), "tensor"));
    model->allocate(at::kDouble);
    model->initialise(11);
    const EngineOptions options{.drafts_itself = true, .ranks = &world.everyone()};
    if (world.rank() != 0) return Engine::follow(*model, options);
    Engine engine(*model, options);
    expect_texts_as_asked(engine, all, "two ranks");
  });
}

TEST(OwnDrafts, are_refused_of_models_without_and_beside_other_guesses) {
  const auto model = [](models::ModelConfig config) {
    auto made = models::create_model(config);
    made->allocate(at::kFloat);
    return made;
  };
  auto config = drafting("llama", 0);
  const auto itself = model(config);
  EXPECT_THROW(Engine(*itself, {.most_drafts = 3, .drafts_itself = true}), base::ConfigError);
  config.draft_block = 0;
  const auto plain = model(config);
  EXPECT_THROW(Engine(*plain, {.drafts_itself = true}), base::ConfigError);
}

models::ForwardContext context_of_drafts(const at::Tensor& ids, const at::Tensor& starts) {
  models::ForwardContext context;
  context.sequences = std::make_shared<layers::Sequences>(ids.size(0), ids.size(1), starts, 0, at::kCPU);
  context.learns_drafts = true;
  context.draft_loss = at::zeros({1}, at::kDouble);
  return context;
}

// The logarithms of what generation drafts from, [1, draft_block, vocab].
at::Tensor drafts_behind(models::Model& model, const at::Tensor& ids) {
  const auto masks = at::full({1, model.config().draft_block}, model.config().draft_mask_id, ids.options());
  const auto both = device::cat({ids, masks}, 1);
  models::ForwardContext context;
  context.sequences = std::make_shared<layers::Sequences>(1, both.size(1), at::Tensor(), 0, at::kCPU);
  context.sequences->let_drafts_see_each_other(masks.size(1));
  return at::log_softmax(model.logits(model.forward(both, context)).narrow(1, ids.size(1), masks.size(1)), 2);
}

// The drafts that training learns in one pass are those that generation makes behind each document's tokens before the block.
TEST(OwnDrafts, are_in_training_what_generation_makes_of_each_prefix_and_have_its_gradients) {
  for (const auto& [family, window] : {std::pair{"llama", 0}, {"llama", 6}, {"zaya1", 0}, {"zaya1", 5}, {"deepseek_v3", 0}}) {
    const auto model = models::create_model(drafting(family, window));
    model->allocate(at::kDouble);
    model->initialise(5);
    const int64_t seq = 23, cut = 14;  // two documents
    const auto ids = at::arange(seq, at::kLong).mul(31).add(5).remainder(kVocab - 2).unsqueeze(0);
    const auto starts = at::arange(seq, at::kInt).ge(cut).to(at::kInt).mul(cut).unsqueeze(0);
    for (const auto& [begin, end] : {std::pair{int64_t{0}, cut}, {cut, seq}})
      for (int64_t block = begin; block < end; block += 4) {
        if (block == begin) continue;  // generation has a token before its first draft
        const at::NoGradGuard no_grad;
        const auto drafted = drafts_behind(*model, ids.narrow(1, begin, block - begin));
        for (int64_t at = block; at < std::min(block + 4, end); ++at) {
          if (block + 4 > end) continue;  // its last block ends with the document, and is shorter than those of generation
          auto targets = at::full_like(ids, -100);
          targets[0][at - 1] = ids[0][at];
          auto context = context_of_drafts(ids, starts);
          model->loss(ids, targets, 1, context);
          EXPECT_NEAR(context.draft_loss.item<double>(), -drafted[0][at - block][ids[0][at]].item<double>(), 1e-9)
              << family << " token " << at;
        }
      }
    // One step along a direction of all parameters changes the loss by the gradient's share of it.
    auto targets = device::cat({ids.narrow(1, 1, seq - 1), ids.narrow(1, 0, 1)}, 1).clone();
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

}  // namespace
}  // namespace ingot::serve
