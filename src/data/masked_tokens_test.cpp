#include "data/masked_tokens.h"

#include <algorithm>
#include <vector>

#include "data/loader.h"
#include "data/test_support.h"

namespace ingot::data {
namespace {

DataConfig config_of(const fs::path& prefix, double rate) {
  DataConfig config;
  config.sources = {{.path = prefix.string()}};
  config.packing = "best_fit";
  config.seq_len = 64;
  config.mask_rate = rate, config.mask_id = 7;
  return config;
}

TEST(MaskedTokens, are_so_many_hidden_in_the_papers_shares_and_learned_where_they_stand) {
  const TemporaryFolder folder;
  const auto prefix = counting_dataset(folder, "text", std::vector<int>(1000, 40), 1000);
  auto plain = config_of(prefix, 0);
  const int64_t vocab = 50000, rows = 500;
  const Loader loader(config_of(prefix, 0.15), Split::train, {.vocab_size = vocab}), before(plain, Split::train, {.vocab_size = vocab});
  const auto batch = loader.batch(0, rows), expected = before.batch(0, rows);
  EXPECT_EQ(batch.document_starts, expected.document_starts);
  double text = 0, learned = 0, hidden = 0, other = 0;
  for (size_t i = 0; i < batch.inputs.size(); ++i) {
    text += expected.inputs[i] >= 1000;
    if (batch.targets[i] == kIgnoredTarget) {
      EXPECT_EQ(batch.inputs[i], expected.inputs[i]);
      continue;
    }
    ++learned;
    EXPECT_EQ(batch.targets[i], expected.inputs[i]);
    EXPECT_GE(expected.inputs[i], 1000) << "padding is learned";
    hidden += batch.inputs[i] == 7;
    other += batch.inputs[i] != 7 && batch.inputs[i] != batch.targets[i];
  }
  EXPECT_NEAR(learned / text, 0.15, 0.01);
  EXPECT_NEAR(hidden / learned, 0.8, 0.03);
  EXPECT_NEAR(other / learned, 0.1, 0.02);
  EXPECT_EQ(loader.batch(0, rows).inputs, batch.inputs);
  EXPECT_NE(loader.batch(rows, rows).targets, batch.targets);
}

TEST(MaskedTokens, leave_prompts_alone_and_need_a_mask) {
  const TemporaryFolder folder;
  IndexedDatasetWriter writer(folder / "chats", TokenType::int32);
  for (int i = 0; i < 200; ++i) {
    writer.append(std::vector<int32_t>(10, 100), /*learned=*/false);
    writer.append(std::vector<int32_t>(12, 200));
    writer.end_document();
  }
  writer.finish();
  const auto batch = Loader(config_of(folder / "chats", 1), Split::train).batch(0, 40);
  for (size_t i = 0; i < batch.targets.size(); ++i) EXPECT_TRUE(batch.targets[i] == 200 || batch.targets[i] == kIgnoredTarget);
  EXPECT_GT(std::count(batch.targets.begin(), batch.targets.end(), 200), 40 * 20);
  auto config = config_of(folder / "chats", 0.1);
  config.mask_id = -1;
  expect_error<base::ConfigError>([&] { Loader(config, Split::train); }, {"data.mask_id"});
}

}  // namespace
}  // namespace ingot::data
