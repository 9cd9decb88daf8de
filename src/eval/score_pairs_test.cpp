// Against the log-probabilities of each pair's whole row, fed alone in fp64.
#include "eval/score_pairs.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/family.h"

namespace ingot::eval {
namespace {

std::unique_ptr<models::Model> made(models::ModelConfig config) {
  auto model = models::create_model(config);
  model->allocate(at::kDouble);
  model->initialise(3);
  return model;
}

std::vector<int64_t> ids_of(int64_t tokens, int64_t kind) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < tokens; ++i) ids.push_back((7 * i + 5 * kind + i * i) % 47);
  return ids;
}

// Contexts of many lengths; answers of one token, of several, that begin alike; a context with one answer; a context of one token.
std::vector<Pair> pairs_of_many_kinds() {
  std::vector<Pair> pairs;
  int64_t kind = 0;
  for (const int64_t context : {20, 9, 21, 1, 17, 20}) {
    ++kind;
    for (int64_t answer = 0; answer < (kind == 5 ? 1 : 4); ++answer)
      pairs.push_back({ids_of(context, kind), ids_of(1 + answer % 3 * kind % 6, answer)});
    if (kind == 3) pairs.push_back({ids_of(context, kind), {1, 2, 3}}), pairs.push_back({ids_of(context, kind), {1, 2, 4}});
  }
  for (int64_t answer = 0; answer < 4; ++answer) pairs.push_back({ids_of(12, 9), {answer}});
  return pairs;
}

PairScore alone(models::Model& model, const Pair& pair) {
  const at::NoGradGuard no_grad;
  auto ids = pair.context;
  ids.insert(ids.end(), pair.continuation.begin(), pair.continuation.end());
  const auto tokens = static_cast<int64_t>(ids.size()) - 1;
  models::ForwardContext context;
  context.sequences = std::make_shared<layers::Sequences>(1, tokens, at::Tensor(), 0, at::kCPU);
  const auto row = at::tensor(std::vector<int64_t>(ids.begin(), ids.end() - 1), at::kLong).unsqueeze(0);
  const auto p = at::log_softmax(model.logits(model.forward(row, context)), 2)[0];
  PairScore score{.is_greedy = true};
  for (size_t i = 0; i < pair.continuation.size(); ++i) {
    const auto at = p[static_cast<int64_t>(pair.context.size() + i) - 1];
    score.of_tokens.push_back(static_cast<float>(at[pair.continuation[i]].item<double>()));
    score.log_likelihood += at[pair.continuation[i]].item<double>();
    score.is_greedy = score.is_greedy && at.argmax().item<int64_t>() == pair.continuation[i];
  }
  return score;
}

void expect_as_alone(models::Model& model, std::vector<Pair> pairs, const std::vector<int64_t>& passes) {
  // One that the model would have written itself.
  {
    const auto context = ids_of(6, 2);
    const at::NoGradGuard no_grad;
    models::ForwardContext forward;
    forward.sequences = std::make_shared<layers::Sequences>(1, 6, at::Tensor(), 0, at::kCPU);
    const auto logits = model.logits(model.forward(at::tensor(context, at::kLong).unsqueeze(0), forward));
    pairs.push_back({context, {logits[0][5].argmax().item<int64_t>()}});
  }
  std::vector<PairScore> expected;
  for (const auto& pair : pairs) expected.push_back(alone(model, pair));
  EXPECT_TRUE(expected.back().is_greedy);
  for (const int64_t pass_tokens : passes) {
    int64_t done = 0;
    const auto scores = score_pairs(model, pairs, {.pass_tokens = pass_tokens, .progress = [&](int64_t now) { done = now; }});
    ASSERT_EQ(scores.size(), pairs.size());
    EXPECT_EQ(done, static_cast<int64_t>(pairs.size()));
    for (size_t i = 0; i < pairs.size(); ++i) {
      EXPECT_NEAR(scores[i].log_likelihood, expected[i].log_likelihood, 2e-5) << i << " of " << pass_tokens;
      EXPECT_EQ(scores[i].is_greedy, expected[i].is_greedy) << i;
      ASSERT_EQ(scores[i].of_tokens.size(), expected[i].of_tokens.size());
      for (size_t t = 0; t < expected[i].of_tokens.size(); ++t)
        EXPECT_NEAR(scores[i].of_tokens[t], expected[i].of_tokens[t], 2e-5) << i << " " << t;
    }
  }
}

class EveryFamilysScores : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryFamilysScores, are_those_of_each_pair_alone) {
  expect_as_alone(*made(models::small_model(GetParam())), pairs_of_many_kinds(), {48, 100000});
}

INSTANTIATE_TEST_SUITE_P(Families, EveryFamilysScores, ::testing::ValuesIn(models::family_names()),
                         [](const auto& info) { return info.param; });

TEST(ScorePairs, keeps_longrope_to_each_rows_own_length) {
  auto config = models::small_model("phi3");
  config.rope_scaling = "longrope", config.rope_original_positions = 12;
  config.rope_short_factors = {1, 1, 1, 2}, config.rope_long_factors = {2, 3, 5, 7};
  expect_as_alone(*made(config), pairs_of_many_kinds(), {1, 64, 100000});
}

TEST(ScorePairs, refuses_what_has_no_score) {
  const auto model = made(models::small_model("llama"));
  EXPECT_THROW(score_pairs(*model, {{{}, {1}}}), base::DataError);
  EXPECT_THROW(score_pairs(*model, {{{1}, {}}}), base::DataError);
  EXPECT_THROW(score_pairs(*model, {{{1}, {1000000}}}), base::DataError);
  EXPECT_THROW(score_pairs(*model, {{{-1}, {1}}}), base::DataError);
  EXPECT_TRUE(score_pairs(*model, {}).empty());
}

}  // namespace
}  // namespace ingot::eval
