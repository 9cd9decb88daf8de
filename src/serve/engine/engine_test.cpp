#include "serve/engine/engine.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "base/test_night.h"
#include "comm/world.h"
#include "models/family.h"
#include "serve/engine/plain_text.h"
#include "serve/load_model.h"

namespace ingot::serve {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<models::Model> model_of(const std::string& family) {
  auto model = models::create_model(models::small_model(family));
  model->allocate(at::kDouble);
  model->initialise(3);
  return model;
}

std::vector<int64_t> prompt_of(int64_t tokens, int64_t kind) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back((7 * i + 5 * kind + i * i) % 47);
  return ids;
}

struct Whole {
  std::vector<int64_t> ids;
  std::vector<Choice> tokens;
  Ended ended = Ended::not_yet;
};

Whole read(Text& text) {
  Whole whole;
  while (whole.ended == Ended::not_yet) {
    auto news = text.wait(milliseconds(60000));
    for (auto& token : news.tokens) whole.ids.push_back(token.id), whole.tokens.push_back(std::move(token));
    whole.ended = news.ended;
  }
  return whole;
}

class EveryFamilysEngine : public ::testing::TestWithParam<std::string> {};

// Prompts of many lengths in passes of few tokens: pieces of prompts beside texts that have begun, some of which end early.
TEST_P(EveryFamilysEngine, continues_texts_side_by_side_as_each_alone) {
  const auto model = model_of(GetParam());
  const std::vector<int64_t> lengths = {1, 9, 30, 2, 17};
  std::vector<std::vector<int64_t>> expected;
  std::vector<TextRequest> requests;
  for (size_t i = 0; i < lengths.size(); ++i) {
    TextRequest request{.prompt = prompt_of(lengths[i], static_cast<int64_t>(i)), .most_tokens = 4 + static_cast<int64_t>(3 * i)};
    request.sampling = {.temperature = i % 2 ? 0.9 : 0, .top_k = 20, .top_p = 0.9, .seed = i};
    expected.push_back(plain_text(*model, request.prompt, request.most_tokens, -1, request.sampling));
    requests.push_back(std::move(request));
  }
  Engine engine(*model, {.most_texts = 4, .pass_tokens = 8});
  std::vector<std::shared_ptr<Text>> texts;
  for (const auto& request : requests) texts.push_back(engine.submit(request));
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto whole = read(*texts[i]);
    EXPECT_EQ(whole.ids, expected[i]) << i << " " << texts[i]->failure();
    EXPECT_EQ(whole.ended, Ended::length);
  }
}

std::vector<int64_t> with_tail(std::vector<int64_t> ids, int64_t tokens, int64_t kind) {
  const auto tail = prompt_of(tokens, kind);
  ids.insert(ids.end(), tail.begin(), tail.end());
  return ids;
}

// One after another: the second text meets the first one's pages, and where layers have states leaves those of the fork for the third.
TEST_P(EveryFamilysEngine, texts_that_begin_alike_say_what_each_says_alone) {
  const auto model = model_of(GetParam());
  const auto beginning = prompt_of(70, 1);
  Engine engine(*model, {.pass_tokens = 50});
  for (const int64_t kind : {2, 3, 4, 2}) {
    const auto prompt = with_tail(beginning, 20 + 7 * kind, kind);
    EXPECT_EQ(read(*engine.submit({.prompt = prompt, .most_tokens = 8})).ids, plain_text(*model, prompt, 8, -1, {})) << kind;
  }
  EXPECT_GE(engine.counts().reused_tokens, 64 + 96) << "the third text the fork, the fourth its own prompt";
}

// What texts have made is there for those that go on from it.
TEST_P(EveryFamilysEngine, goes_on_from_a_text_that_it_made) {
  const auto model = model_of(GetParam());
  Engine engine(*model, {});
  auto ids = prompt_of(30, 5);
  const int turns = base::tests_run_at_night() ? 3 : 2;
  for (int turn = 0; turn < turns; ++turn) {
    const auto expected = plain_text(*model, ids, 40, -1, {});
    EXPECT_EQ(read(*engine.submit({.prompt = ids, .most_tokens = 40})).ids, expected) << turn;
    ids.insert(ids.end(), expected.begin(), expected.end());
    ids.push_back(7);
  }
  EXPECT_GE(engine.counts().reused_tokens, turns == 2 ? 64 : 64 + 96);
}

// Looked up or guessed by a model, right or wrong, greedy or drawn: the text stays what it is.
TEST_P(EveryFamilysEngine, drafts_leave_texts_as_they_are) {
  const auto model = model_of(GetParam()), other = models::create_model(models::small_model("zaya1"));
  other->allocate(at::kDouble);
  other->initialise(4);
  std::vector<TextRequest> requests;
  std::vector<std::vector<int64_t>> expected;
  for (int64_t i = 0; i < 3; ++i) {
    // Few tokens to choose from: repetitions, so that lookups find something.
    const SamplingOptions sampling{.temperature = i % 2 ? 0.7 : 0, .top_k = 3, .seed = static_cast<uint64_t>(i)};
    auto prompt = with_tail(prompt_of(6, 3), 6, 3);
    prompt.resize(static_cast<size_t>(8 + 2 * i));
    expected.push_back(plain_text(*model, prompt, 24, -1, sampling));
    requests.push_back({.prompt = prompt, .most_tokens = 24, .sampling = sampling});
  }
  for (auto* draft_model : {static_cast<models::Model*>(nullptr), other.get()}) {
    Engine engine(*model, {.most_texts = 2, .most_drafts = 5, .draft_model = draft_model});
    std::vector<std::shared_ptr<Text>> texts;
    for (const auto& request : requests) texts.push_back(engine.submit(request));
    for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(read(*texts[i]).ids, expected[i]) << i << " " << texts[i]->failure();
    if (draft_model) {
      EXPECT_GT(engine.counts().drafted, 0);
    }
  }
}

// One model on two ranks, its matrices, its experts, or matrices and cache shared out: the texts of one rank. Where a family cannot be cut
// so, the model says it.
TEST_P(EveryFamilysEngine, continues_over_ranks_as_one_rank_does) {
  const auto config = models::small_model(GetParam());
  const auto alone = model_of(GetParam());
  std::vector<TextRequest> requests;
  std::vector<std::vector<int64_t>> expected;
  for (int64_t i = 0; i < 4; ++i) {
    const SamplingOptions sampling{.temperature = i % 2 ? 0.8 : 0, .seed = static_cast<uint64_t>(i)};
    const auto prompt = with_tail(prompt_of(40, 1), 5 * i, i);
    expected.push_back(plain_text(*alone, prompt, 10, -1, sampling));
    requests.push_back({.prompt = prompt, .most_tokens = 10, .sampling = sampling, .likeliest = 1});
  }
  for (const std::string axis : {"tensor", "tensor_sequence", "experts"}) {
    int refused = 0;
    comm::run_ranks(2, [&](comm::World& world) {
      const auto shared_out = world.group("axis", {0, 1});
      std::unique_ptr<models::Model> model;
      try {
        model = models::create_model(config, layout_over(*shared_out, axis));
      } catch (const base::ConfigError&) {
        if (world.rank() == 0) ++refused;
        return;
      }
      model->allocate(at::kDouble);
      model->initialise(3);
      const EngineOptions options{.pass_tokens = 40, .most_drafts = 3, .ranks = &world.everyone()};
      if (world.rank() != 0) return Engine::follow(*model, options);
      Engine engine(*model, options);
      const auto gone = engine.submit({.prompt = {1}, .most_tokens = 100000});
      std::vector<std::shared_ptr<Text>> texts;
      for (const auto& request : requests) texts.push_back(engine.submit(request));
      gone->cancel();
      for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(read(*texts[i]).ids, expected[i]) << i << " " << texts[i]->failure();
      EXPECT_EQ(read(*gone).ended, Ended::cancelled);
    });
    if (refused > 0) GTEST_LOG_(INFO) << GetParam() << " has no " << axis << " axis";
  }
}

INSTANTIATE_TEST_SUITE_P(Families, EveryFamilysEngine, ::testing::ValuesIn(models::family_names()),
                         [](const auto& info) { return info.param; });

TEST(Engine, scores_prompts_and_new_tokens) {
  const auto model = model_of("llama");
  const auto prompt = prompt_of(11, 1);
  const at::NoGradGuard no_grad;
  models::ForwardContext context;
  context.sequences = std::make_shared<layers::Sequences>(1, 11, at::Tensor(), 0, at::kCPU);
  const auto expected = at::log_softmax(model->logits(model->forward(at::tensor(prompt, at::kLong).unsqueeze(0), context)), 2)[0];
  for (const int64_t new_tokens : {0, 1}) {
    Engine engine(*model, {.pass_tokens = 4});
    // The rows of one must not be taken for those of another.
    const auto other = engine.submit({.prompt = prompt_of(5, 9), .most_tokens = 6});
    const auto text = engine.submit({.prompt = prompt, .most_tokens = new_tokens, .likeliest = 3, .scores_prompt = true});
    const auto whole = read(*text);
    read(*other);
    ASSERT_EQ(text->prompt_scores().size(), prompt.size());
    for (size_t i = 1; i < prompt.size(); ++i) {
      const auto& score = text->prompt_scores()[i];
      const auto row = expected[static_cast<int64_t>(i) - 1];
      EXPECT_EQ(score.id, prompt[i]);
      EXPECT_NEAR(score.logprob, row[prompt[i]].item<double>(), 1e-6);
      ASSERT_EQ(score.likeliest.size(), 3u);
      EXPECT_EQ(score.likeliest[0].id, row.argmax().item<int64_t>());
      EXPECT_NEAR(score.likeliest[0].logprob, row.max().item<double>(), 1e-6);
    }
    ASSERT_EQ(static_cast<int64_t>(whole.tokens.size()), new_tokens);
    if (new_tokens == 1) {
      EXPECT_NEAR(whole.tokens[0].logprob, expected[10].max().item<double>(), 1e-6);
    }
  }
}

// Pieces of a prompt go by its whole length, and a text does not cross the border that earlier keys were turned by.
TEST(Engine, keeps_longrope_to_the_length_of_the_prompt) {
  auto config = models::small_model("phi3");
  config.rope_scaling = "longrope", config.rope_original_positions = 12;
  config.rope_short_factors = {1, 1, 1, 2}, config.rope_long_factors = {2, 3, 5, 7};
  const auto model = models::create_model(config);
  model->allocate(at::kDouble);
  model->initialise(3);
  Engine engine(*model, {.pass_tokens = 4});
  for (const int64_t tokens : {6, 20}) {
    const auto expected = plain_text(*model, prompt_of(tokens, 1), 6, -1, {});
    EXPECT_EQ(read(*engine.submit({.prompt = prompt_of(tokens, 1), .most_tokens = 6})).ids, expected) << tokens;
  }
  EXPECT_THROW(engine.submit({.prompt = prompt_of(6, 1), .most_tokens = 7}), base::UsageError);
}

// As many passes as there would be without a word of the text being wrong.
TEST(Engine, takes_the_guesses_of_a_model_that_is_the_same) {
  for (const char* family : {"llama", "zaya1"}) {
    const auto model = model_of(family), same = model_of(family);
    for (const double temperature : {0.0, 1.0})
      for (uint64_t seed = 0; seed < 8; ++seed) {
        const SamplingOptions sampling{.temperature = temperature, .seed = seed};
        Engine engine(*model, {.most_drafts = 4, .draft_model = same.get()});
        const auto text = engine.submit({.prompt = prompt_of(9, 1), .most_tokens = 41, .sampling = sampling, .likeliest = 0});
        EXPECT_EQ(read(*text).ids, plain_text(*model, prompt_of(9, 1), 41, -1, sampling)) << seed << " " << text->failure();
        const auto counts = engine.counts();
        EXPECT_EQ(counts.drafts_taken, counts.drafted);
        EXPECT_EQ(counts.passes, 1 + 40 / 5);
      }
  }
}

TEST(Engine, refuses_a_draft_model_of_other_tokens) {
  const auto model = model_of("llama");
  auto config = models::small_model("llama");
  config.vocab_size += 1;
  const auto other = models::create_model(config);
  other->allocate(at::kDouble);
  EXPECT_THROW(Engine(*model, {.most_drafts = 4, .draft_model = other.get()}), base::ConfigError);
}

TEST(Engine, reads_a_prompt_of_many_texts_once) {
  const auto model = model_of("llama");
  const auto prompt = prompt_of(100, 1);
  Engine engine(*model, {.pass_tokens = 40});
  std::vector<TextRequest> requests(6, TextRequest{.prompt = prompt, .most_tokens = 3});
  for (size_t i = 0; i < requests.size(); ++i) requests[i].sampling = {.temperature = 1, .seed = i};
  const auto texts = engine.submit_all(requests);
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(read(*texts[i]).ids, plain_text(*model, prompt, 3, -1, requests[i].sampling));
  EXPECT_EQ(engine.counts().prompt_tokens, 100 + 5 * 4);
  EXPECT_EQ(engine.counts().reused_tokens, 5 * 96);
}

TEST(Engine, keeps_no_more_than_it_may) {
  const auto model = model_of("llama");
  const auto& config = model->config();
  const int64_t page = 2 * 32 * config.kv_heads * config.head_dim * 8 * config.layers;
  Engine engine(*model, {.most_kept_bytes = 5 * page});
  for (int64_t kind = 0; kind < 4; ++kind) {
    const auto prompt = prompt_of(100, kind);
    EXPECT_EQ(read(*engine.submit({.prompt = prompt, .most_tokens = 4})).ids, plain_text(*model, prompt, 4, -1, {}));
    EXPECT_LE(engine.counts().kept_bytes, 5 * page);
  }
  EXPECT_EQ(engine.counts().kept_bytes, 5 * page);
  EXPECT_EQ(engine.counts().reused_tokens, 0);
  const auto last = prompt_of(100, 3);
  read(*engine.submit({.prompt = last, .most_tokens = 4}));
  EXPECT_EQ(engine.counts().reused_tokens, 96) << "the newest text is there whole";
  Engine without(*model, {.most_kept_bytes = 0});
  for (int times = 0; times < 2; ++times) read(*without.submit({.prompt = last, .most_tokens = 4}));
  EXPECT_EQ(without.counts().reused_tokens, 0);
}

// Over a tensor_sequence axis one rank may have more pages of a text than another: what goes first goes on all of them.
TEST(Engine, ranks_that_keep_unlike_much_keep_the_same) {
  for (const char* family : {"llama", "zaya1"}) {
    const auto alone = model_of(family);
    std::vector<std::vector<int64_t>> prompts, expected;
    for (const int64_t kind : {0, 1, 0, 2, 1, 0, 3, 3, 2, 0}) {
      prompts.push_back(prompt_of(70 + 33 * kind, kind));
      expected.push_back(plain_text(*alone, prompts.back(), 4, -1, {}));
    }
    for (const int64_t pages : {3, 6, 10})
      comm::run_ranks(2, [&](comm::World& world) {
        const auto model = models::create_model(models::small_model(family), layout_over(world.everyone(), "tensor_sequence"));
        model->allocate(at::kDouble);
        model->initialise(3);
        const auto& config = model->config();
        const int64_t most = pages * 2 * 32 * config.kv_heads * config.head_dim * 8 * config.layers;
        const EngineOptions options{.most_kept_bytes = most, .ranks = &world.everyone()};
        if (world.rank() != 0) return Engine::follow(*model, options);
        Engine engine(*model, options);
        for (size_t i = 0; i < prompts.size(); ++i) {
          const auto text = engine.submit({.prompt = prompts[i], .most_tokens = 4});
          EXPECT_EQ(read(*text).ids, expected[i]) << family << " " << pages << " pages, text " << i << " " << text->failure();
        }
        EXPECT_LE(engine.counts().kept_bytes, most);
        if (pages == 10) {
          EXPECT_GT(engine.counts().reused_tokens, 0) << family;
        }
      });
  }
}

TEST(Engine, has_a_place_again_when_a_text_has_ended) {
  const auto model = model_of("llama");
  Engine engine(*model, {.most_texts = 1, .most_waiting = 0});
  for (int times = 0; times < 300; ++times) read(*engine.submit({.prompt = {1}, .most_tokens = 1}));
}

TEST(Engine, says_that_another_rank_is_gone) {
  EXPECT_THROW(comm::run_ranks(2,
                               [&](comm::World& world) {
                                 const auto model = model_of("llama");
                                 world.everyone().barrier();
                                 if (world.rank() == 1) throw base::Error("gone");
                                 Engine engine(*model, {.ranks = &world.everyone()});
                                 const auto text = engine.submit({.prompt = {1}, .most_tokens = 100000});
                                 EXPECT_EQ(read(*text).ended, Ended::failed);
                                 EXPECT_NE(text->failure(), "");
                                 EXPECT_NE(engine.failure(), "");
                                 EXPECT_THROW(engine.submit({.prompt = {1}}), BusyError);
                               }),
               base::Error);
}

TEST(Engine, takes_all_texts_of_a_request_or_none) {
  const auto model = model_of("llama");
  Engine engine(*model, {.most_texts = 2, .most_waiting = 2});
  const auto of = [](size_t count) { return std::vector<TextRequest>(count, TextRequest{.prompt = {1}, .most_tokens = 2}); };
  EXPECT_THROW(engine.submit_all(of(5)), base::UsageError);
  auto wrong = of(3);
  wrong[2].prompt = {-1};
  EXPECT_THROW(engine.submit_all(wrong), base::UsageError);
  EXPECT_EQ(engine.counts().waiting + engine.counts().running, 0) << "nothing was taken";
  for (const auto& text : engine.submit_all(of(4))) EXPECT_EQ(read(*text).ended, Ended::length);
}

TEST(Engine, ends_at_stop_tokens_and_when_cancelled) {
  const auto model = model_of("llama");
  const auto all = plain_text(*model, prompt_of(6, 2), 12, -1, {});
  Engine engine(*model);
  const auto stopped = read(*engine.submit({.prompt = prompt_of(6, 2), .most_tokens = 12, .stop_ids = {all[4]}}));
  EXPECT_EQ(stopped.ended, Ended::stop);
  EXPECT_EQ(stopped.ids.back(), all[4]);
  EXPECT_LE(stopped.ids.size(), 5u);
  const auto endless = engine.submit({.prompt = prompt_of(6, 2), .most_tokens = 100000});
  endless->wait(milliseconds(60000));
  endless->cancel();
  EXPECT_EQ(read(*endless).ended, Ended::cancelled);
  // Its place is free moments later.
  for (int tries = 0; tries < 500 && engine.counts().running > 0; ++tries) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(engine.counts().cached_tokens, 0);
  EXPECT_EQ(engine.counts().running, 0);
}

TEST(Engine, refuses_what_cannot_be_and_what_is_too_much) {
  const auto model = model_of("llama");
  Engine engine(*model, {.most_texts = 1, .most_waiting = 2, .most_cached_tokens = 1000});
  EXPECT_THROW(engine.submit({.prompt = {}}), base::UsageError);
  EXPECT_THROW(engine.submit({.prompt = {50}}), base::UsageError);
  EXPECT_THROW(engine.submit({.prompt = {-1}}), base::UsageError);
  EXPECT_THROW(engine.submit({.prompt = {1}, .most_tokens = 1000}), base::UsageError);
  std::vector<std::shared_ptr<Text>> texts;
  const auto submit = [&] { texts.push_back(engine.submit({.prompt = {1}, .most_tokens = 900})); };
  EXPECT_THROW(for (int i = 0; i < 10; ++i) submit(), BusyError);
  EXPECT_GE(texts.size(), 2u);
  for (const auto& text : texts) text->cancel();
  for (const auto& text : texts) EXPECT_EQ(read(*text).ended, Ended::cancelled);
  engine.close();
  EXPECT_THROW(submit(), BusyError);
}

TEST(Engine, ends_texts_that_are_under_way_when_it_ends) {
  const auto model = model_of("llama");
  std::shared_ptr<Text> text;
  {
    Engine engine(*model);
    text = engine.submit({.prompt = {1}, .most_tokens = 200000});
    text->wait(milliseconds(60000));
  }
  EXPECT_EQ(read(*text).ended, Ended::cancelled);
}

}  // namespace
}  // namespace ingot::serve
