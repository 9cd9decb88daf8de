// Models put together from parts: what a configuration may mix, what the model then says that it can do, and how parts lie in a Hugging
// Face folder. Every family's numbers are tested in behaviour_test.cpp.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/hugging_face.h"
#include "models/model.h"
#include "models/stored_tensors.h"

namespace ingot::models {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Of the settings that each of fla's model types has, what the others have not.
ModelConfig tiny_fla(const std::string& type) {
  auto c = small_model("fla");
  if (type == "gla") c.linear_attention = "diagonal_gate", c.feature_map = "relu", c.gate_rank = 16, c.short_convolution = 3;
  if (type == "gla_ungated")
    c.linear_attention = "diagonal_gate", c.feature_map = "identity", c.gate_rank = 16, c.linear_output_gate = false,
    c.short_convolution = 0;
  if (type == "delta_net") c.linear_attention = "delta", c.layer_types = {"full", "sliding"}, c.window = 3;
  if (type == "gated_deltanet") c.linear_key_heads = 2, c.tie_embeddings = true;
  if (type == "linear_attn") c.linear_attention = "basic", c.feature_map = "elu", c.linear_output_gate = false, c.short_convolution = 0;
  if (type == "retnet") c.linear_attention = "retnet", c.feature_map = "identity", c.short_convolution = 0;
  if (type == "kda") c.linear_attention = "kda", c.gate_rank = c.output_gate_rank = c.resolved_linear_value_dim();
  return c;
}

std::string message_of(const ModelConfig& config, const parallel::Layout& layout = {}) {
  try {
    create_model(config, layout);
  } catch (const base::ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Parts, a_model_says_what_its_layers_can_do) {
  const auto zaya1 = create_model(small_model("zaya1")), llama = create_model(small_model("llama")),
             linear = create_model(small_model("linear_llama"));
  EXPECT_TRUE(zaya1->has_experts());
  EXPECT_EQ(zaya1->routing_classes(), 5);  // and the one that skips
  EXPECT_EQ(zaya1->router_state_width(), 12);
  EXPECT_EQ(zaya1->halo(), 2);
  EXPECT_FALSE(llama->has_experts());
  EXPECT_EQ(llama->router_state_width(), 0);
  EXPECT_EQ(linear->halo(), 3);
  EXPECT_TRUE(linear->mixes_linearly(1));
  EXPECT_FALSE(linear->mixes_linearly(2));

  auto mixed = small_model("qwen3_moe");
  mixed.mixers = {"linear", "cca", "softmax"};
  mixed.feed_forwards = {"mlp", "moe"};
  const auto model = create_model(mixed);
  EXPECT_TRUE(model->mixes_linearly(0) && model->mixes_linearly(3));
  EXPECT_FALSE(model->mixes_linearly(1) || model->mixes_linearly(2));
  EXPECT_FALSE(model->has_experts(0));
  EXPECT_TRUE(model->has_experts(1));
  EXPECT_EQ(model->routing_classes(), 4);
  EXPECT_EQ(model->halo(), 3);
}

// A stage answers for all layers, also for those that lie elsewhere.
TEST(Parts, every_stage_of_a_pipeline_says_the_same) {
  auto config = small_model("llama");
  config.mixers = {"softmax", "softmax", "linear", "linear"};
  config.feed_forwards = {"mlp", "mlp", "moe", "moe"};
  parallel::Layout first;
  first.stage = {.rank = 0, .size = 2, .pieces = {{0, 2}, {2, 4}}};
  const auto model = create_model(config, first);
  EXPECT_TRUE(model->mixes_linearly(3));
  EXPECT_TRUE(model->has_experts(3));
  EXPECT_EQ(model->halo(), 3);
  EXPECT_EQ(model->parameters().find("model.layers.2.mlp.gate.weight"), nullptr);
}

TEST(Parts, names_that_do_not_exist_and_impossible_mixtures_are_refused) {
  auto config = small_model("llama");
  config.mixers = {"sofmax"};
  EXPECT_THAT(message_of(config), HasSubstr("did you mean 'softmax'"));
  config.mixers = {};
  config.feed_forwards = {"mlp", "moee"};
  EXPECT_THAT(message_of(config), HasSubstr("model.feed_forwards has 'moee'"));
  config.feed_forwards = {"mlp", "moe"};
  EXPECT_EQ(message_of(config), "accepted");
  config.mlp_bias = true;
  EXPECT_THAT(message_of(config), HasSubstr("no such biases"));

  auto zaya1 = small_model("zaya1");
  zaya1.feed_forwards = {"mlp", "moe"};
  parallel::Layout stage;
  stage.stage = {.rank = 0, .size = 2, .pieces = {{0, 2}, {2, 4}}};
  EXPECT_THAT(message_of(zaya1, stage), HasSubstr("put moe first"));
  zaya1.feed_forwards = {"moe", "mlp"};
  EXPECT_EQ(message_of(zaya1, stage), "accepted");

  parallel::Layout tensor;
  tensor.tensor = {.size = 2, .shards_tokens = true};
  EXPECT_THAT(message_of(small_model("olmoe"), tensor), HasSubstr("parallel.context cuts"));
  EXPECT_EQ(message_of(small_model("qwen3_moe"), tensor), "accepted");
  parallel::Layout experts;
  experts.experts.size = 2;
  EXPECT_THAT(message_of(small_model("qwen3"), experts), HasSubstr("the qwen3 family has no experts"));
}

std::vector<std::string> rounded_in(const Model& model) {
  std::vector<std::string> names;
  for (const auto& p : model.parameters().all())
    if (p->quantization) names.push_back(p->name);
  return names;
}

TEST(Fp8, rounds_the_large_gemms_of_inner_blocks_and_no_router) {
  for (const std::string family : {"llama", "zaya1", "olmoe"}) {
    auto config = small_model(family);
    config.layers = 4;
    const auto model = create_model(config);
    model->allocate(at::kBFloat16);
    EXPECT_THAT(rounded_in(*model), testing::IsEmpty());
    model->allocate(layers::precision_named("mxfp8"));
    const auto names = rounded_in(*model);
    EXPECT_THAT(names, testing::Each(testing::AnyOf(HasSubstr("layers.1."), HasSubstr("layers.2."))));
    EXPECT_THAT(names, testing::Contains(HasSubstr("layers.2.mlp")));
    EXPECT_THAT(names, testing::Contains(HasSubstr("layers.1.self_attn")));
    EXPECT_THAT(names, testing::Not(testing::Contains(testing::AnyOf(HasSubstr("router"), HasSubstr("norm"), HasSubstr("mlp.gate.")))));
    for (const auto& p : model->parameters().all()) EXPECT_TRUE(!p->quantization || p->value.scalar_type() == at::kBFloat16) << p->name;
  }
  auto shallow = small_model("llama");
  shallow.layers = 2;
  const auto model = create_model(shallow);
  model->allocate(layers::precision_named("fp8"));
  EXPECT_THAT(rounded_in(*model), testing::IsEmpty());
}

class Folder : public ::testing::TestWithParam<std::string> {};
std::vector<std::string> kinds_of_folders() {
  auto kinds = family_names();
  for (const char* more : {"deepseek_v3 mtp", "qwen3_next mtp", "fla gla", "fla gla_ungated", "fla delta_net", "fla gated_deltanet",
                           "fla linear_attn", "fla retnet", "fla kda"})
    kinds.emplace_back(more);
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Families, Folder, ::testing::ValuesIn(kinds_of_folders()), [](const auto& info) {
  auto name = info.param;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

// Written and read again, it is the same model to the last bit; "mtp": with a predictor of a further token.
TEST_P(Folder, keeps_the_model) {
  const at::NoGradGuard no_grad;
  auto config = small_model(GetParam().substr(0, GetParam().find(' ')));
  if (GetParam().ends_with("mtp")) config.mtp_layers = 1;
  if (GetParam().starts_with("fla ")) config = tiny_fla(GetParam().substr(4));
  const auto model = create_model(config);
  model->allocate(at::kFloat);
  model->initialise(7);
  const fs::path folder = fs::path(::testing::TempDir()) / ("ingot_parts_" + GetParam());
  fs::remove_all(folder);
  save_hugging_face(*model, folder, tensor::DType::fp32, [](const layers::Parameter& p) { return p.value; });
  const auto again = load_hugging_face_model(folder, at::kFloat, at::kCPU);
  ASSERT_EQ(model->parameters().all().size(), again->parameters().all().size());
  for (const auto& p : model->parameters().all()) EXPECT_TRUE(at::equal(p->value, again->parameters().get(p->name).value)) << p->name;
  const auto ids = at::arange(26, at::kLong).view({2, 13});
  ForwardContext a, b;
  a.sequences = b.sequences = std::make_shared<layers::Sequences>(2, 13, at::Tensor(), 0, at::kCPU);
  EXPECT_TRUE(at::equal(model->forward(ids, a), again->forward(ids, b)));
  fs::remove_all(folder);
}

TEST(SmolLm3, refuses_layers_that_it_would_read_wrongly) {
  const nlohmann::json good = {{"num_hidden_layers", 2}, {"hidden_size", 24},       {"num_attention_heads", 4},
                               {"vocab_size", 50},       {"intermediate_size", 40}, {"no_rope_layers", {1, 0}}};
  const auto read = family_named("smollm3").from_hugging_face;
  EXPECT_EQ(read(good).layer_types, (std::vector<std::string>{"full", "nope"}));
  for (const auto& [field, wrong] : std::map<std::string, nlohmann::json>{{"no_rope_layers", {1, "x"}},
                                                                          {"no_rope_layers ", {1}},
                                                                          {"use_sliding_window", true},
                                                                          {"layer_types", {"full_attention", "sliding_attention"}}}) {
    auto json = good;
    json[field.substr(0, field.find(' '))] = wrong;
    EXPECT_THROW(read(json), base::ModelError) << field;
  }
}

TEST(Gemma2, reads_caps_and_refuses_what_is_not_positive) {
  const nlohmann::json good = {
      {"num_hidden_layers", 2}, {"hidden_size", 24}, {"num_attention_heads", 4}, {"vocab_size", 50}, {"intermediate_size", 40}};
  const auto read = family_named("gemma2").from_hugging_face;
  EXPECT_EQ(read(good).score_cap, 50);
  EXPECT_EQ(read(good).logit_cap, 30);
  EXPECT_EQ(read(good).layer_types, (std::vector<std::string>{"sliding", "full"}));
  for (const char* field : {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"}) {
    auto json = good;
    json[field] = -1;
    EXPECT_THROW(read(json), base::ModelError) << field;
  }
}

TEST(Phi3, refuses_factors_of_longrope_that_do_not_fit) {
  nlohmann::json json = {{"num_hidden_layers", 2}, {"hidden_size", 32},       {"num_attention_heads", 4},
                         {"vocab_size", 50},       {"intermediate_size", 40}, {"original_max_position_embeddings", 64}};
  json["rope_scaling"] = {{"type", "su"}, {"short_factor", {1, 1, 1, 1}}, {"long_factor", {1, 2, 3, 4}}};
  const auto read = family_named("phi3").from_hugging_face;
  EXPECT_EQ(message_of(read(json)), "accepted");
  json["rope_scaling"]["long_factor"] = {1, 2, 3};
  EXPECT_THAT(message_of(read(json)), HasSubstr("model.rope_long_factors has 3 numbers"));
  for (const nlohmann::json& wrong :
       {nlohmann::json("x"), nlohmann::json({1, 2, 0, 1}), nlohmann::json({1, 2, "x", 1}), nlohmann::json()}) {
    json["rope_scaling"]["long_factor"] = wrong;
    EXPECT_THROW(read(json), base::ModelError) << wrong;
  }
}

TEST(Fla, a_model_is_of_the_type_that_its_settings_make) {
  const auto& family = family_named("fla");
  for (const char* type : {"gla", "delta_net", "gated_deltanet", "linear_attn"}) {
    const auto json = family.to_hugging_face(tiny_fla(type));
    EXPECT_EQ(json.at("model_type"), type);
    EXPECT_EQ(family.from_hugging_face(json).linear_attention, tiny_fla(type).linear_attention);
  }
  const auto model = create_model(tiny_fla("gla"));
  std::vector<std::string> names;
  for (const auto& stored : stored_tensors(*model)) names.push_back(stored.name);
  EXPECT_THAT(names, testing::IsSupersetOf({"model.embeddings.weight", "model.layers.0.attn_norm.weight", "model.layers.1.mlp_norm.weight",
                                            "model.layers.0.attn.gk_proj.1.bias", "model.layers.0.attn.g_norm_swish_gate.weight",
                                            "model.layers.1.attn.o_proj.weight", "model.layers.0.mlp.gate_proj.weight"}));
}

TEST(Fla, refuses_to_write_what_it_would_read_as_something_else) {
  const auto message = [](const char* type, const auto& change) -> std::string {
    auto config = tiny_fla(type);
    change(config);
    try {
      family_named("fla").to_hugging_face(config);
    } catch (const base::ConfigError& error) {
      return error.what();
    }
    return "written";
  };
  EXPECT_EQ(message("gla", [](auto&) {}), "written");
  EXPECT_THAT(message("gla", [](auto& c) { c.linear_attention = "retention"; }),
              HasSubstr("of diagonal_gate, delta, gated_delta, basic, retnet, kda"));
  EXPECT_THAT(message("gla", [](auto& c) { c.feature_map = "l2"; }), HasSubstr("feature_map"));
  EXPECT_THAT(message("gla", [](auto& c) { c.gate_rank = 8; }), HasSubstr("gate_rank"));
  EXPECT_THAT(message("gla", [](auto& c) { c.linear_key_heads = 2; }), HasSubstr("linear_key_heads"));
  EXPECT_THAT(message("gla", [](auto& c) { c.head_dim = 6; }), HasSubstr("head_dim"));
  EXPECT_THAT(message("gla", [](auto& c) { c.rope_fraction = 0.5; }), HasSubstr("rope_fraction"));
  EXPECT_EQ(message("gla", [](auto& c) { c.head_dim = 6, c.layer_pattern = "L"; }), "written");  // of no layer
  EXPECT_THAT(message("delta_net", [](auto& c) { c.short_convolution = 0; }), HasSubstr("short_convolution"));
  EXPECT_THAT(message("delta_net", [](auto& c) { c.layer_pattern = "N"; }), HasSubstr("a window in some"));
  EXPECT_THAT(message("linear_attn", [](auto& c) { c.linear_output_gate = true; }), HasSubstr("linear_output_gate"));
  EXPECT_THAT(message("kda", [](auto& c) { c.linear_output_gate = false; }), HasSubstr("linear_output_gate = false"));
  EXPECT_THAT(message("kda", [](auto& c) { c.gate_rank = 3; }), HasSubstr("gate_rank other than linear_value_dim"));
}

// What fla itself writes and ingot refuses is in tests/python/fla_test.py; this is what nobody writes.
TEST(Fla, refuses_hostile_files) {
  const nlohmann::json good = {{"model_type", "gla"}, {"num_hidden_layers", 2}, {"hidden_size", 24}, {"num_heads", 4}, {"vocab_size", 50}};
  const auto read = family_named("fla").from_hugging_face;
  EXPECT_EQ(read(good).linear_key_dim, 3);
  EXPECT_EQ(read(good).ffn, 256);
  const nlohmann::json attention = {{"num_heads", 4}};
  const auto of_layers = [&](const nlohmann::json& layers) {
    auto json = attention;
    json["layers"] = layers;
    return json;
  };
  EXPECT_EQ(
      [&] {
        auto json = good;
        json["attn"] = of_layers({1});
        return read(json).layer_pattern;
      }(),
      "LN");
  for (const auto& [field, wrong] : std::vector<std::pair<std::string, nlohmann::json>>{{"num_heads", 0},
                                                                                        {"num_heads", nullptr},
                                                                                        {"expand_k", 1e300},
                                                                                        {"expand_k", -1},
                                                                                        {"expand_v", 0},
                                                                                        {"hidden_ratio", 1e300},
                                                                                        {"model_type", "gsa"},
                                                                                        {"attn", "all"},
                                                                                        {"attn", of_layers({2})},
                                                                                        {"attn", of_layers({-1})},
                                                                                        {"attn", of_layers({"x"})}}) {
    auto json = good;
    json[field] = wrong;
    EXPECT_THROW(read(json), base::ModelError) << field << " " << wrong;
  }
  auto deep = good;
  deep["num_hidden_layers"] = int64_t{1} << 60, deep["attn"] = of_layers({1});
  EXPECT_THROW(read(deep), base::ModelError);
}

TEST(GptOss, refuses_axes_that_would_count_a_sink_or_a_bias_twice) {
  parallel::Layout slices;
  slices.experts.slices = 2;
  EXPECT_THAT(message_of(small_model("gpt_oss"), slices), HasSubstr("parallel.expert shares experts out"));
  parallel::Layout folded;
  folded.tensor_sequence.size = 2;
  EXPECT_THAT(message_of(small_model("gpt_oss"), folded), HasSubstr("attention with sinks"));
}

TEST(DeepSeekV3, refuses_settings_that_do_not_fit) {
  const auto refused = [](const char* what, const auto& change) {
    auto config = small_model("deepseek_v3");
    change(config);
    EXPECT_THAT(message_of(config), HasSubstr(what));
  };
  refused("accepted", [](auto&) {});
  refused("model.kv_heads = 2", [](auto& c) { c.kv_heads = 2; });
  refused("model.kv_rank = 0", [](auto& c) { c.kv_rank = 0; });
  refused("model.rope_head_dim = 5", [](auto& c) { c.rope_head_dim = 5; });
  refused("model.value_head_dim = 9", [](auto& c) { c.value_head_dim = 9; });
  refused("model.router_groups = 4", [](auto& c) { c.router_groups = 4; });
  refused("model.router_top_groups = 4", [](auto& c) { c.router_top_groups = 4; });
  refused("is more than the 4 experts", [](auto& c) { c.top_k = 5; });
  parallel::Layout folded;
  folded.tensor_sequence.size = 2;
  EXPECT_THAT(message_of(small_model("deepseek_v3"), folded), HasSubstr("latent attention"));

  const nlohmann::json good = {{"num_hidden_layers", 2}, {"hidden_size", 24}, {"num_attention_heads", 4}, {"vocab_size", 50}};
  const auto read = family_named("deepseek_v3").from_hugging_face;
  EXPECT_EQ(read(good).kv_rank, 512);
  for (const auto& [field, wrong] : std::map<std::string, nlohmann::json>{{"scoring_func", "softmax"},
                                                                          {"topk_method", "greedy"},
                                                                          {"rope_interleave", false},
                                                                          {"moe_layer_freq", 2},
                                                                          {"partial_rotary_factor", 0.5},
                                                                          {"quantization_config", {{"quant_method", "fp8"}}}}) {
    auto json = good;
    json[field] = wrong;
    EXPECT_THROW(read(json), base::ModelError) << field;
  }
}

// μP (docs/mup.md): what grows with the width begins smaller by its root, and the norm before the head by all of it.
TEST(Mup, wider_models_begin_with_smaller_matrices_and_logits) {
  for (const char* family : {"llama", "deepseek_v3", "qwen3_next"}) {
    auto config = small_model(family);
    config.mup_base_hidden = config.hidden / 4;
    const auto model = create_model(config), plain = create_model(small_model(family));
    for (const auto& p : model->parameters().all()) {
      const auto& other = plain->parameters().get(p->name);
      const bool reads_latent = p->name.find("q_b_proj") != std::string::npos || p->name.find("kv_b_proj") != std::string::npos;
      const bool is_last = p->name == "model.norm.weight";
      const double width = (p->kind == layers::Parameter::Kind::matrix && !reads_latent) || is_last ? 4 : 1;
      EXPECT_EQ(p->width, width) << family << " " << p->name;
      EXPECT_EQ(other.width, 1) << p->name;
      const double shift = family == std::string("qwen3_next") ? -1 : 0;  // 1 + weight
      EXPECT_DOUBLE_EQ(p->initial.mean, is_last ? 0.25 + shift : other.initial.mean) << p->name;
      EXPECT_DOUBLE_EQ(p->initial.deviation, other.initial.deviation / std::sqrt(is_last ? 1 : width)) << p->name;
    }
  }
}

// Over the stages of a pipeline they lie behind the last layer, which embeds their tokens by a copy of the first stage's embedding.
TEST(Predictors, lie_on_the_last_stage_with_an_embedding) {
  auto config = small_model("deepseek_v3");
  config.mtp_layers = 1, config.tie_embeddings = false;
  for (const int rank : {0, 1}) {
    parallel::Layout stages;
    stages.stage = {.rank = rank, .size = 2, .pieces = {{0, 2}, {2, 4}}};
    const auto model = create_model(config, stages);
    EXPECT_EQ(model->parameters().find("model.layers.4.eh_proj.weight") != nullptr, rank == 1);
    EXPECT_TRUE(model->parameters().get("model.embed_tokens.weight").is_at_both_ends);
  }
}

TEST(Parts, that_no_family_has_together_have_no_hugging_face_form) {
  auto config = small_model("llama");
  config.mixers = {"cca", "softmax"};
  const auto model = create_model(config);
  EXPECT_THROW(save_hugging_face(*model, fs::path(::testing::TempDir()) / "ingot_hybrid", tensor::DType::fp32, {}), base::ModelError);
}

TEST(Stored, experts_lie_apart_and_make_up_the_stack) {
  layers::Parameter up{.name = "model.layers.3.mlp.experts.gate_up_proj", .shape = {2, 6, 5}, .kind = layers::Parameter::Kind::matrix};
  const auto stored = stored_by_expert({}, up);
  ASSERT_EQ(stored.size(), 4u);
  EXPECT_EQ(stored[0].name, "model.layers.3.mlp.experts.0.gate_proj.weight");
  EXPECT_EQ(stored[3].name, "model.layers.3.mlp.experts.1.up_proj.weight");
  const auto whole = at::arange(60).view({2, 6, 5});
  EXPECT_TRUE(at::equal(part_of(whole, stored[3]), whole[1].narrow(0, 3, 3)));
}

}  // namespace
}  // namespace ingot::models
