#include "serve/engine/news.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::serve {
namespace {

TEST(News, reach_other_ranks_as_they_are) {
  const TextRequest request{.prompt = {3, 1, 2},
                            .most_tokens = 9,
                            .stop_ids = {5, 6},
                            .sampling = {.temperature = 0.1,
                                         .top_k = 7,
                                         .top_p = 1.0 / 3,
                                         .min_p = 1e-300,
                                         .repetition_penalty = 1.3,
                                         .presence_penalty = -2,
                                         .frequency_penalty = 0.7,
                                         .logit_bias = {{4, -100}, {8, 0.1}},
                                         .seed = ~uint64_t{0}},
                            .likeliest = 4,
                            .scores_prompt = true};
  const auto news =
      read_news(write_news({.begun = {{12, request}, {13, {.prompt = {1}}}}, .cancelled = {2, 11}, .dropped_pages = 7, .is_ending = true}));
  EXPECT_TRUE(news.is_ending);
  EXPECT_EQ(news.dropped_pages, 7);
  EXPECT_THAT(news.cancelled, ::testing::ElementsAre(2, 11));
  ASSERT_EQ(news.begun.size(), 2u);
  EXPECT_EQ(news.begun[0].first, 12);
  const auto& got = news.begun[0].second;
  EXPECT_EQ(got.prompt, request.prompt);
  EXPECT_EQ(got.most_tokens, request.most_tokens);
  EXPECT_EQ(got.stop_ids, request.stop_ids);
  EXPECT_EQ(got.likeliest, request.likeliest);
  EXPECT_TRUE(got.scores_prompt);
  const auto &a = got.sampling, &b = request.sampling;
  EXPECT_EQ(a.temperature, b.temperature);
  EXPECT_EQ(a.top_k, b.top_k);
  EXPECT_EQ(a.top_p, b.top_p);
  EXPECT_EQ(a.min_p, b.min_p);
  EXPECT_EQ(a.repetition_penalty, b.repetition_penalty);
  EXPECT_EQ(a.presence_penalty, b.presence_penalty);
  EXPECT_EQ(a.frequency_penalty, b.frequency_penalty);
  EXPECT_EQ(a.logit_bias, b.logit_bias);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(news.begun[1].first, 13);
  EXPECT_FALSE(news.begun[1].second.likeliest);
  EXPECT_FALSE(read_news(write_news({})).is_ending);
}

}  // namespace
}  // namespace ingot::serve
