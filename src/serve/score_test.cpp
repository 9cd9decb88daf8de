// Against the log-probabilities of each document's logits alone.
#include "serve/score.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/error.h"
#include "models/model.h"

namespace ingot::serve {
namespace {

namespace fs = std::filesystem;

class Scores : public ::testing::TestWithParam<std::string> {};  // rope_scaling

TEST_P(Scores, are_the_log_probabilities_of_learned_tokens_however_documents_fall_into_rows) {
  const auto folder = fs::temp_directory_path() / ("ingot_score_" + GetParam() + std::to_string(::getpid()));
  fs::create_directories(folder);
  models::ModelConfig c;
  c.family = "llama", c.layers = 2, c.hidden = 16, c.vocab_size = 30, c.heads = c.kv_heads = 2, c.ffn = 24, c.init_std = 0.4;
  c.rope_scaling = GetParam();
  // Of the documents below some are longer than the original context, and some shorter.
  if (c.rope_scaling == "longrope") c.rope_original_positions = 8, c.rope_short_factors = {1, 1, 1, 2}, c.rope_long_factors = {2, 3, 5, 7};
  const auto model = models::create_model(c);
  model->allocate(at::kDouble);
  model->initialise(3);
  const std::vector<int> lengths = {5, 1, 9, 30, 2, 4};
  const size_t prompt = 2;
  data::IndexedDatasetWriter writer(folder / "texts", data::TokenType::int32);
  std::vector<std::vector<int32_t>> documents;
  for (const int length : lengths) {
    std::vector<int32_t> ids;
    for (int i = 0; i < length; ++i) ids.push_back((7 * i + 5 * length + i * i) % 29);
    const auto cut = std::min(prompt, ids.size());
    writer.append(std::span(ids).first(cut), /*learned=*/false);
    writer.append(std::span(ids).subspan(cut));
    writer.end_document();
    documents.push_back(ids);
  }
  writer.finish();
  const data::IndexedDataset dataset(folder / "texts");
  std::vector<double> expected;
  const at::NoGradGuard no_grad;
  for (const auto& ids : documents) {
    const auto tokens = at::tensor(std::vector<int64_t>(ids.begin(), ids.end()), at::kLong).unsqueeze(0);
    models::ForwardContext context;
    context.sequences = std::make_shared<layers::Sequences>(1, tokens.size(1), at::Tensor(), 0, model->device());
    const auto p = at::log_softmax(model->logits(model->forward(tokens, context)), 2);
    double sum = 0;
    for (size_t i = prompt; i < ids.size(); ++i) sum += p[0][static_cast<int64_t>(i) - 1][ids[i]].item<double>();
    expected.push_back(sum);
  }
  for (const int64_t row_tokens : {1, 8, 64}) {
    int64_t done = 0;
    const auto scores = score_documents(*model, dataset, {.row_tokens = row_tokens, .progress = [&](int64_t n) { done = n; }});
    ASSERT_EQ(scores.size(), expected.size());
    for (size_t i = 0; i < scores.size(); ++i) EXPECT_NEAR(scores[i], expected[i], 1e-10) << i << " in rows of " << row_tokens;
    EXPECT_EQ(done, static_cast<int64_t>(lengths.size()));
  }
  c.vocab_size = 20;
  const auto small = models::create_model(c);
  small->allocate(at::kFloat);
  EXPECT_THROW(score_documents(*small, dataset), base::DataError);
  fs::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Rope, Scores, ::testing::Values("none", "longrope"), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ingot::serve
