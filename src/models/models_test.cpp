// Sizes and FLOPs of published models, from their shapes alone: nothing is allocated.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

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

int64_t parameters_of(const ModelConfig& config) { return create_model(config)->parameters().weight_elements(); }

// Every file of configs/published/ with the number of parameters that Hugging Face's model has: that of transformers' own model, built from
// the same shapes on torch's meta device (transformers 5.23).
const std::map<std::string, int64_t> kPublished = {{"llama-2-7b", 6'738'415'616},
                                                   {"llama-2-13b", 13'015'864'320},
                                                   {"llama-2-70b", 68'976'648'192},
                                                   {"llama-3.1-8b", 8'030'261'248},
                                                   {"llama-3.1-70b", 70'553'706'496},
                                                   {"llama-3.1-405b", 405'853'388'800},
                                                   {"qwen2.5-0.5b", 494'032'768},
                                                   {"qwen2.5-1.5b", 1'543'714'304},
                                                   {"qwen2.5-3b", 3'085'938'688},
                                                   {"qwen2.5-7b", 7'615'616'512},
                                                   {"qwen2.5-14b", 14'770'033'664},
                                                   {"llama-3.2-1b", 1'235'814'400},
                                                   {"llama-3.2-3b", 3'212'749'824},
                                                   {"qwen3-0.6b", 596'049'920},
                                                   {"qwen3-1.7b", 1'720'574'976},
                                                   {"qwen3-4b", 4'022'468'096},
                                                   {"qwen3-8b", 8'190'735'360},
                                                   {"qwen3-14b", 14'768'307'200},
                                                   {"qwen3-32b", 32'762'123'264},
                                                   {"qwen3-30b-a3b", 30'532'122'624},
                                                   {"qwen3-235b-a22b", 235'093'634'560},
                                                   {"olmoe-1b-7b", 6'919'161'856},
                                                   {"olmo2-1b", 1'484'916'736},
                                                   {"olmo2-7b", 7'298'617'344},
                                                   {"olmo2-13b", 13'716'198'400},
                                                   {"olmo2-32b", 32'234'279'936},
                                                   {"gemma2-2b", 2'614'341'888},
                                                   {"gemma2-9b", 9'241'705'984},
                                                   {"gemma2-27b", 27'227'128'320},
                                                   {"gemma3-270m", 268'098'176},
                                                   {"gemma3-1b", 999'885'952},
                                                   {"mixtral-8x7b", 46'702'792'704},
                                                   {"mixtral-8x22b", 140'620'634'112},
                                                   {"smollm3-3b", 3'075'098'624},
                                                   {"smollm2-135m", 134'515'008},
                                                   {"smollm2-360m", 361'821'120},
                                                   {"smollm2-1.7b", 1'711'376'384},
                                                   {"deepseek-v3", 671'026'404'352},
                                                   {"granite-3.1-2b", 2'533'525'504},
                                                   {"granite-3.1-8b", 8'170'835'968},
                                                   {"kimi-k2", 1'026'408'209'408},
                                                   {"moonlight-16b-a3b", 15'960'108'544},
                                                   {"gpt-oss-20b", 20'914'757'184},
                                                   {"gpt-oss-120b", 116'829'156'672},
                                                   {"phi-3-mini-4k", 3'821'079'552},
                                                   {"phi-4", 14'659'507'200},
                                                   // As its safetensors on Hugging Face count them, less 26 mixtures' balancing biases.
                                                   {"kimi-linear-48b-a3b", 49'122'681'728 - 26 * 256}};

TEST(PublishedModels, every_shipped_configuration_has_exactly_the_published_parameters) {
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator("configs/published")) {
    const auto name = entry.path().stem().string();
    files.insert(name);
    ASSERT_TRUE(kPublished.contains(name)) << name << " is not in this test's table";
    EXPECT_EQ(parameters_of(shipped(entry.path())), kPublished.at(name)) << name;
  }
  EXPECT_EQ(files.size(), kPublished.size());
}

// FLOPs of a token by the configuration's numbers alone: 6 for every weight of a matrix that multiplies (the head's, tied or not, and not
// the embedding's; of a mixture the router and the experts that a token takes), and 6 for every channel of a query and of a value and
// visible key.
double flops_by_hand(const ModelConfig& c, int64_t seq) {
  const bool is_latent = c.family == "deepseek_v3",
             has_experts = is_latent || c.family == "mixtral" || c.family == "olmoe" || c.family == "qwen3_moe" || c.family == "gpt_oss";
  const int64_t head_dim = c.head_dim > 0 ? c.head_dim : c.hidden / c.heads, value_dim = is_latent ? c.value_head_dim : head_dim;
  int64_t attention = 2 * c.hidden * head_dim * (c.heads + c.kv_heads);
  if (is_latent) {
    const int64_t queries = c.heads * head_dim;
    attention = (c.query_rank > 0 ? c.query_rank * (c.hidden + queries) : c.hidden * queries) + c.hidden * (c.kv_rank + c.rope_head_dim) +
                c.kv_rank * c.heads * (head_dim - c.rope_head_dim + value_dim) + c.heads * value_dim * c.hidden;
  }
  const int64_t dense = 3 * c.hidden * c.ffn,
                mixture = c.experts * c.hidden + 3 * c.hidden * (c.top_k * c.expert_ffn + c.shared_expert_ffn);
  const int64_t mixtures = has_experts ? c.layers - c.first_dense_layers : 0;
  double pairs = 0;  // of a row, over all layers
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const auto kinds = static_cast<int64_t>(c.layer_types.size());
    const bool is_sliding = kinds > 0 && c.layer_types[static_cast<size_t>(layer % kinds)] == "sliding";
    for (int64_t query = 1; query <= seq; ++query) pairs += static_cast<double>(is_sliding ? std::min(query, c.window) : query);
  }
  const auto weights =
      static_cast<double>(c.layers * attention + mixtures * mixture + (c.layers - mixtures) * dense + c.vocab_size * c.hidden);
  return 6 * weights + 6 * pairs * static_cast<double>(c.heads * (head_dim + value_dim)) / static_cast<double>(seq);
}

TEST(PublishedModels, flops_of_every_shipped_configuration_are_those_of_its_matrices_and_visible_pairs) {
  for (const auto& [name, _] : kPublished) {
    const auto c = shipped("configs/published/" + name + ".toml");
    if (c.family == "kimi_linear") continue;  // its linear layers' are the kernels' own (bench/*linear_attention*)
    for (const int64_t seq : {1024, 8192})
      EXPECT_NEAR(create_model(c)->training_flops_per_token(seq) / flops_by_hand(c, seq), 1, 1e-12) << name << " " << seq;
  }
}

// What their cards and papers say of the parameters that a token meets, in billions; Qwen's 3.35 stands there cut off, not rounded.
TEST(PublishedModels, active_parameters_of_mixtures_are_the_published_ones) {
  const struct {
    const char* model;
    double billions, precision;
  } kMixtures[] = {
      {"qwen3-30b-a3b", 3.3, 0.1},  {"qwen3-235b-a22b", 22, 0.5}, {"olmoe-1b-7b", 1.3, 0.05},    {"deepseek-v3", 37, 1},
      {"kimi-k2", 32, 1},           {"gpt-oss-20b", 3.61, 0.005}, {"gpt-oss-120b", 5.13, 0.005}, {"kimi-linear-48b-a3b", 3, 0.6},
      {"mixtral-8x7b", 12.9, 0.05}, {"mixtral-8x22b", 39, 0.5}};
  for (const auto& [name, billions, precision] : kMixtures) {
    const auto c = shipped("configs/published/" + std::string(name) + ".toml");
    const auto model = create_model(c);
    // Embedding and head are not among what this program calls active; the published numbers hold both, gpt-oss' the head alone.
    const int64_t vocabulary = (c.family == "gpt_oss" ? 1 : 2) * c.vocab_size * c.hidden;
    EXPECT_NEAR(static_cast<double>(model->active_elements() + vocabulary) / 1e9, billions, precision) << name;
  }
}

// Projects publish tokens/s beside an MFU, and count differently: with these counts each pair agrees to its last digit.
TEST(PublishedModels, published_utilisation_follows_from_published_throughput_by_the_convention_of_each) {
  enum Counts { visible_pairs, full_rows, full_rows_and_embedding };
  const struct {
    const char* model;
    int64_t seq;
    double tokens_per_s, peak, percent;
    Counts counts;
  } kPairs[] = {
      {"qwen2.5-7b", 1024, 13850, 989e12, 60, visible_pairs},  // LLMQ, one GPU and eight
      {"qwen2.5-7b", 1024, 14000, 989e12, 61, visible_pairs},
      {"qwen2.5-1.5b", 1024, 59000, 989e12, 57, visible_pairs},
      {"qwen2.5-1.5b", 1024, 57000, 989e12, 55, visible_pairs},
      {"qwen2.5-14b", 1024, 6100, 989e12, 53, visible_pairs},
      {"llama-3.1-8b", 8192, 6667, 989e12, 39, full_rows},                  // torchtitan on H100
      {"llama-3.1-8b", 8192, 2973, 312e12, 58.2, full_rows_and_embedding},  // torchtitan on A100
      {"llama-3.1-8b", 8192, 2904, 312e12, 56.8, full_rows_and_embedding},
      {"llama-3.1-70b", 8192, 331, 312e12, 51.7, full_rows_and_embedding},
      {"llama-2-13b", 4096, 2162, 312e12, 61.1, full_rows_and_embedding},
      {"llama-2-70b", 4096, 353, 312e12, 50.5, full_rows_and_embedding},
  };
  for (const auto& pair : kPairs) {
    const auto c = shipped("configs/published/" + std::string(pair.model) + ".toml");
    double flops = create_model(c)->training_flops_per_token(pair.seq);
    if (pair.counts != visible_pairs) flops += 12 * static_cast<double>(c.layers * c.hidden * (pair.seq - 1)) / 2;
    if (pair.counts == full_rows_and_embedding) flops += 6 * static_cast<double>(c.vocab_size * c.hidden);
    const double percent = 100 * flops * pair.tokens_per_s / pair.peak;
    EXPECT_NEAR(percent, pair.percent, pair.percent == std::floor(pair.percent) ? 0.5 : 0.1) << pair.model << " " << pair.tokens_per_s;
  }
}

TEST(PublishedModels, zaya1_base_has_the_published_number_of_parameters) {
  const auto model = create_model(shipped("configs/zaya1-base.toml"));
  const int64_t embedding = model->parameters().get("model.embed_tokens.weight").elements();
  EXPECT_EQ(model->parameters().weight_elements(), 8'840'488'784);
  EXPECT_EQ(model->parameters().weight_elements() - embedding, 8'303'355'728);
  EXPECT_EQ(model->active_elements(), 753'608'528);
  int64_t balancing = 0;
  for (const auto& p : model->parameters().all()) balancing += p->is_trained() ? 0 : p->elements();
  EXPECT_EQ(balancing, 680);  // 40 layers of 16 experts and the skip class, kept beside the parameters
}

TEST(PublishedModels, zaya1_base_flops_are_those_of_its_matrices_and_visible_pairs) {
  const auto model = create_model(shipped("configs/zaya1-base.toml"));
  // Weights that one token meets in a layer, from ZAYA1 as published: q, k, both v, o; both convolutions; the router; one expert.
  const double attention = 2048 * (1024 + 256 + 128 + 128) + 1024 * 2048, convolutions = 1280 * (128 * 2 + 2);
  const double router = 2048 * 256 + 2 * 256 * 256 + 256 * 17, expert = 4096 * 2048 + 2048 * 2048;
  const double weights = 40 * (attention + convolutions + router + expert) + 262272.0 * 2048;
  EXPECT_EQ(weights, 1'289'762'816);
  const double pairs = 4.0 * 1024 * 40 * (4096 + 1) / 2;  // 4 FLOPs per channel of the queries and visible key
  // All but the first convolution of CCA, two multiply-adds for a channel, which no kernel counts.
  EXPECT_NEAR(model->training_flops_per_token(4096) / (3 * (2 * weights + pairs)), 1, 1e-4);
}

// The usual rule of thumb, 6 N, is a little less.
TEST(PublishedModels, llama_7b_takes_a_little_more_than_six_flops_for_each_parameter) {
  EXPECT_NEAR(create_model(shipped("configs/published/llama-2-7b.toml"))->training_flops_per_token(4096) / (6 * 6.738e9), 1.06, 0.01);
}

// Linear-Llama3-1B (LASP-2, arXiv 2502.07563) with softmax attention in every fourth of its layers; matrices counted one by one.
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
