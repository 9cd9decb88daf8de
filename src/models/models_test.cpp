// Sizes and FLOPs of published models, from their shapes alone: nothing is allocated.
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/settings.h"
#include "models/model.h"

namespace ingot::models {
namespace {

// The group `model` of a shipped configuration.
ModelConfig shipped(const std::string& path) {
  ModelConfig config;
  base::SettingsTable table;
  declare_settings(table, config);
  std::string document = base::read_file(path);
  // Only [model] is known to this table; it ends where [data] begins.
  table.load_toml(document.substr(0, document.find("\n[data]")), path);
  return config;
}

ModelConfig llama(int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t ffn, int64_t vocab, bool tied) {
  ModelConfig c;
  c.family = "llama";
  c.layers = layers;
  c.hidden = hidden;
  c.heads = heads;
  c.kv_heads = kv_heads;
  c.ffn = ffn;
  c.vocab_size = vocab;
  c.tie_embeddings = tied;
  return c;
}

int64_t parameters_of(const ModelConfig& config) { return create_model(config)->parameters().trained_elements(); }

TEST(PublishedModels, zaya1_base_has_the_published_number_of_parameters) {
  const auto model = create_model(shipped("configs/zaya1-base.toml"));
  const int64_t embedding = model->parameters().get("model.embed_tokens.weight").elements();
  EXPECT_EQ(model->parameters().trained_elements(), 8'840'488'784);
  EXPECT_EQ(model->parameters().trained_elements() - embedding, 8'303'355'728);
  EXPECT_EQ(model->active_elements(), 753'608'528);
  int64_t balancing = 0;
  for (const auto& p : model->parameters().all()) balancing += p->is_trained() ? 0 : p->elements();
  EXPECT_EQ(balancing, 680);  // 40 layers of 16 experts and the skip class, kept beside the parameters
}

TEST(PublishedModels, zaya1_base_flops_are_those_of_its_matrices_and_visible_pairs) {
  const auto model = create_model(shipped("configs/zaya1-base.toml"));
  // Weights that one token meets in a layer, from facts zaya1 §4: q, k, both v, o; both convolutions; the router; one expert.
  const double attention = 2048 * (1024 + 256 + 128 + 128) + 1024 * 2048, convolutions = 1280 * (128 * 2 + 2);
  const double router = 2048 * 256 + 2 * 256 * 256 + 256 * 17, expert = 4096 * 2048 + 2048 * 2048;
  const double weights = 40 * (attention + convolutions + router + expert) + 262272.0 * 2048;
  EXPECT_EQ(weights, 1'289'762'816);
  const double pairs = 4.0 * 1024 * 40 * (4096 + 1) / 2;  // 4 FLOPs per channel of the queries and visible key
  EXPECT_DOUBLE_EQ(model->training_flops_per_token(4096), 3 * (2 * weights + pairs));
}

TEST(PublishedModels, llamas_have_the_number_of_parameters_that_hugging_face_counts) {
  EXPECT_EQ(parameters_of(llama(32, 4096, 32, 32, 11008, 32000, false)), 6'738'415'616);   // Llama 2 7B
  EXPECT_EQ(parameters_of(llama(40, 5120, 40, 40, 13824, 32000, false)), 13'015'864'320);  // Llama 2 13B
  EXPECT_EQ(parameters_of(llama(32, 4096, 32, 8, 14336, 128256, false)), 8'030'261'248);   // Llama 3 8B
  EXPECT_EQ(parameters_of(llama(80, 8192, 64, 8, 28672, 128256, false)), 70'553'706'496);  // Llama 3 70B
  EXPECT_EQ(parameters_of(llama(16, 2048, 32, 8, 8192, 128256, true)), 1'235'814'400);     // Llama 3.2 1B
}

TEST(PublishedModels, llama_7b_flops_are_six_for_each_matrix_weight_and_twelve_for_each_visible_pair) {
  const auto model = create_model(llama(32, 4096, 32, 32, 11008, 32000, false));
  const double weights = 32.0 * (4.0 * 4096 * 4096 + 3.0 * 4096 * 11008) + 32000.0 * 4096;
  EXPECT_EQ(weights, 6'607'077'376);
  EXPECT_DOUBLE_EQ(model->training_flops_per_token(4096), 6 * weights + 12 * (4096 + 1) / 2.0 * 4096 * 32);
  // The usual rule of thumb, 6 N, is a little less.
  EXPECT_NEAR(model->training_flops_per_token(4096) / (6 * 6.738e9), 1.06, 0.01);
}

// Linear-Llama3-1B (facts lasp2 §5) with softmax attention in every fourth of its layers; matrices counted one by one.
TEST(PublishedModels, a_hybrid_has_the_parameters_and_flops_of_both_kinds_of_layer) {
  auto config = llama(16, 2048, 16, 16, 8192, 128256, true);
  config.family = "linear_llama";
  config.linear_attention = "basic";
  config.feature_map = "silu";
  config.short_convolution = 0;
  config.linear_output_gate = false;
  const int64_t block = 4 * 2048 * 2048 + 3 * 2048 * 8192 + 2 * 2048;               // projections, MLP, norms
  EXPECT_EQ(parameters_of(config), 128256 * 2048 + 2048 + 16 * block + 12 * 2048);  // and a norm on the heads of linear layers
  const double weights = 16.0 * (block - 2 * 2048) + 128256.0 * 2048;
  const double softmax = 4 * 4.0 * 2048 * (4096 + 1) / 2, linear = 12 * 4.0 * 2048 * 128;  // by pairs; by key and value channels
  EXPECT_DOUBLE_EQ(create_model(config)->training_flops_per_token(4096), 3 * (2 * weights + softmax + linear));
}

TEST(PublishedModels, a_window_counts_only_the_pairs_it_shows) {
  auto config = llama(2, 64, 4, 4, 128, 256, true);
  const double full = create_model(config)->training_flops_per_token(100);
  config.layer_types = {"full", "sliding"};
  config.window = 10;
  // A row of 100 tokens shows 5050 pairs in full and 10 * 11 / 2 + 90 * 10 = 955 through the window.
  EXPECT_NEAR(full - create_model(config)->training_flops_per_token(100), 12.0 * 64 * (5050 - 955) / 100, 1e-6);
}

}  // namespace
}  // namespace ingot::models
