#include "serve/engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "device/aten.h"

namespace ingot::serve {
namespace {

TEST(Sampler, penalties_and_biases_change_the_logits_as_stated) {
  const std::vector<float> logits = {2, 1.9f, -1, 0};
  const std::vector<int64_t> prompt = {0, 2};
  EXPECT_EQ(Sampler({.repetition_penalty = 1.5}, prompt).choose(logits, 0), 1);  // 2 / 1.5
  EXPECT_EQ(Sampler({.logit_bias = {{3, 5}}}, prompt).choose(logits, 0), 3);
  EXPECT_EQ(Sampler({.logit_bias = {{99, 5}}}, prompt).choose(logits, 0), 0) << "no token of the vocabulary";
  Sampler presence({.presence_penalty = 0.2}, prompt);
  EXPECT_EQ(presence.choose(logits, 0), 0) << "the prompt does not count";
  EXPECT_EQ(presence.choose(logits, 1), 1);
  EXPECT_EQ(presence.choose(logits, 2), 0) << "once, however often";
  Sampler frequency({.frequency_penalty = 0.06}, {});
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < 6; ++i) ids.push_back(frequency.choose(logits, i));
  EXPECT_THAT(ids, ::testing::ElementsAre(0, 0, 1, 0, 1, 0));
}

TEST(Sampler, draws_in_proportion_to_what_is_left) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  const auto shares = [&](const SamplingOptions& options) {
    std::vector<double> share(4);
    for (int i = 0; i < 10000; ++i) share[static_cast<size_t>(draw(logits, options, (i + 0.5) / 10000))] += 1e-4;
    return share;
  };
  using ::testing::DoubleNear;
  using ::testing::ElementsAre;
  EXPECT_THAT(shares({.temperature = 1}),
              ElementsAre(DoubleNear(0.5, 1e-3), DoubleNear(0.3, 1e-3), DoubleNear(0.15, 1e-3), DoubleNear(0.05, 1e-3)));
  EXPECT_THAT(shares({.temperature = 1, .min_p = 0.2}),
              ElementsAre(DoubleNear(0.5263, 1e-3), DoubleNear(0.3158, 1e-3), DoubleNear(0.1579, 1e-3), 0));
  EXPECT_THAT(shares({.temperature = 1, .top_k = 2}), ElementsAre(DoubleNear(0.625, 1e-3), DoubleNear(0.375, 1e-3), 0, 0));
  EXPECT_THAT(shares({.temperature = 1, .top_p = 0.6, .min_p = 0.7}), ElementsAre(DoubleNear(1, 1e-9), 0, 0, 0));
  EXPECT_THAT(shares({.temperature = 0}), ElementsAre(DoubleNear(1, 1e-9), 0, 0, 0));
  EXPECT_THROW(draw(std::vector<float>{0, NAN}, {.temperature = 1}, 0.5), base::Error);
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

TEST(Sampler, draws_as_if_the_whole_vocabulary_were_sorted) {
  at::manual_seed(3);
  for (const int64_t vocab : {1, 7, 64, 65, 3000}) {
    const auto logits = (2 * at::randn({1, vocab})).mul(8).round().div(8);  // with equal ones
    for (const int64_t top_k : {0, 1, 5, 100})
      for (const double top_p : {0.0, 0.3, 0.95, 1.0})
        for (const int64_t position : {0, 1, 2, 3, 4, 5}) {
          const SamplingOptions options{.temperature = 0.8, .top_k = top_k, .top_p = top_p, .seed = 11};
          const double uniform = uniform_of(options.seed, position);
          ASSERT_EQ(uniform, base::uniform_at(base::stream_key(options.seed, "sample"), static_cast<uint64_t>(position * 65536)));
          const std::span<const float> row(logits.const_data_ptr<float>(), static_cast<size_t>(vocab));
          ASSERT_EQ(draw(row, options, uniform), drawn_from_all_sorted(logits[0], options, uniform))
              << vocab << " " << top_k << " " << top_p << " " << position;
        }
  }
}

}  // namespace
}  // namespace ingot::serve
