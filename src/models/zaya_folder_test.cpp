// The older form's settings; its tensors are compared with recorded references in tests/end_to_end/zaya_folder_test.py.
#include "models/zaya_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/hugging_face.h"

namespace ingot::models {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json repeated(const json& even, const json& odd, int64_t stages) {
  json list = json::array();
  for (int64_t stage = 0; stage < stages; ++stage) list.push_back(stage % 2 == 0 ? even : odd);
  return list;
}

// As Zyphra published them: ZAYA1-8B's settings are scalars, those of ZAYA1-base lists beside stale scalars.
json scalars() {
  return json::parse(R"({"activation_func": "swiglu", "activation_func_fp8_input_store": false, "add_bias_linear": false,
    "architectures": ["ZayaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bias_activation_fusion": true, "bos_token_id": 2,
    "cca": true, "dtype": "bfloat16", "eos_token_id": 106, "ffn_hidden_size": 4096, "gated_linear_unit": true, "hidden_size": 2048,
    "head_dim": 128, "kv_channels": 128, "lm_head_bias": false, "mamba_cache_dtype": "float32", "max_position_embeddings": 131072,
    "model_type": "zaya", "moe_router_topk": 1, "norm_epsilon": 1e-05, "normalization": "RMSNorm", "num_attention_heads": 8,
    "num_experts": 16, "num_hidden_layers": 80, "num_key_value_heads": 2, "num_query_groups": 2, "pad_token_id": 0,
    "partial_rotary_factor": 0.5, "residual_in_fp32": true, "rope_scaling": false, "rope_theta": 5000000, "scale_residual_merge": true,
    "sliding_window": null, "tie_word_embeddings": true, "use_cache": true, "vocab_size": 262272, "zaya_high_prec": true,
    "zaya_mlp_expansion": 256, "zaya_use_eda": true, "zaya_use_mod": true})");
}
json lists() {
  auto config = scalars();
  for (const char* scalar : {"ffn_hidden_size", "head_dim", "kv_channels", "num_experts", "num_query_groups"}) config.erase(scalar);
  config.update({{"num_hidden_layers", 120},
                 {"num_attention_heads", 16},
                 {"zaya_layers", repeated("a", 16, 80)},
                 {"cca_num_q_heads", repeated(8, 0, 80)},
                 {"num_query_groups_list", repeated(2, 0, 80)},
                 {"ffn_hidden_size_list", repeated(0, 4096, 120)},
                 {"zaya_mlp_expansion", repeated(0, 256, 80)},
                 {"rope_theta", 1000000},
                 {"max_position_embeddings", 32768},
                 {"residual_in_fp32", false},
                 {"eos_token_id", 1}});
  return config;
}
// transformers' own.
json plain() {
  return json::parse(R"({"architectures": ["ZayaForCausalLM"], "attention_bias": false, "bos_token_id": 2, "cca_time0": 2, "cca_time1": 2,
    "eos_token_id": 106, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "lm_head_bias": false, "max_position_embeddings": 131072,
    "model_type": "zaya", "moe_intermediate_size": 2048, "num_attention_heads": 8, "num_experts": 16, "num_experts_per_tok": 1,
    "num_hidden_layers": 40, "num_key_value_heads": 2, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_parameters": {
      "hybrid": {"partial_rotary_factor": 0.5, "rope_theta": 5000000, "rope_type": "default"},
      "hybrid_sliding": {"partial_rotary_factor": 0.5, "rope_theta": 10000, "rope_type": "default"}},
    "router_hidden_size": 256, "sliding_window": null, "tie_word_embeddings": true, "vocab_size": 262272})");
}

class ZayaFolder : public ::testing::Test {
 protected:
  std::filesystem::path folder = std::filesystem::temp_directory_path() / ("ingot_zaya_folder_" + std::to_string(::getpid()));
  void SetUp() override { std::filesystem::create_directories(folder); }
  void TearDown() override { std::filesystem::remove_all(folder); }
  ModelConfig read(const json& config) const {
    std::ofstream(folder / "config.json") << config;
    return read_hugging_face_config(folder);
  }
  std::string refusal(const json& config) const {
    try {
      read(config);
    } catch (const base::ModelError& error) {
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(ZayaFolder, published_settings_of_all_forms_give_the_published_number_of_parameters) {
  for (const auto& config : {scalars(), lists(), plain()}) {
    const auto model = create_model(read(config));
    EXPECT_EQ(model->parameters().weight_elements(), 8'840'488'784);
    int64_t balancing = 0;
    for (const auto& p : model->parameters().all()) balancing += p->is_trained() ? 0 : p->elements();
    EXPECT_EQ(balancing, 680);
  }
}

TEST_F(ZayaFolder, older_settings_are_those_of_transformers_form) {
  auto expected = read(plain());
  expected.skip_output = "identity";
  EXPECT_EQ(read(scalars()), expected);
  expected.rope_base = 1e6, expected.max_positions = 32768, expected.eos_id = 1;
  EXPECT_EQ(read(lists()), expected);
}

TEST_F(ZayaFolder, without_the_skip_class_there_are_as_many_classes_as_experts) {
  auto config = scalars();
  config["zaya_use_mod"] = false;
  EXPECT_EQ(create_model(read(config))->routing_classes(), 16);
}

TEST_F(ZayaFolder, switches_without_a_counterpart_are_refused_by_name) {
  const auto with = [](json config, const char* name, const json& value) {
    config[name] = value;
    return config;
  };
  for (const char* name : {"cca", "zaya_use_eda", "scale_residual_merge", "gated_linear_unit"})
    EXPECT_THAT(refusal(with(scalars(), name, false)), HasSubstr(std::string(name) + " = false"));
  for (const char* name : {"clamp_temp", "add_bias_linear", "activation_func_fp8_input_store", "attention_bias", "lm_head_bias"})
    EXPECT_THAT(refusal(with(scalars(), name, true)), HasSubstr(std::string(name) + " = true"));
  EXPECT_THAT(refusal(with(scalars(), "normalization", "LayerNorm")), HasSubstr("normalization"));
  EXPECT_THAT(refusal(with(scalars(), "activation_func", "gelu")), HasSubstr("activation_func"));
  EXPECT_THAT(refusal(with(scalars(), "cca_time0", 4)), HasSubstr("cca_time0"));
  EXPECT_THAT(refusal(with(scalars(), "sliding_window", 4096)), HasSubstr("sliding_window"));
  EXPECT_THAT(refusal(with(scalars(), "swa_layers", repeated(4096, 0, 80))), HasSubstr("swa_layers"));
  EXPECT_THAT(refusal(with(scalars(), "swa_rotary_base", 10000)), HasSubstr("swa_rotary_base"));
  EXPECT_EQ(refusal(with(scalars(), "swa_layers", repeated(0, 0, 80))), "accepted");
  EXPECT_THAT(refusal(with(scalars(), "quantization_config", json::object())), HasSubstr("quantized"));
}

TEST_F(ZayaFolder, lists_that_differ_or_contradict_are_refused_by_name) {
  const auto with = [](const char* name, const auto& change) {
    auto config = lists();
    change(config[name]);
    return config;
  };
  EXPECT_THAT(refusal(with("cca_num_q_heads", [](json& list) { list[6] = 4; })),
              HasSubstr("cca_num_q_heads is 8 in stage 0 and 4 in stage 6"));
  EXPECT_THAT(refusal(with("zaya_layers", [](json& list) { list[2] = 16; })), HasSubstr("stage 2 of zaya_layers is 16"));
  EXPECT_THAT(refusal(with("zaya_layers", [](json& list) { list[3] = 8; })), HasSubstr("zaya_layers is 16 in stage 1 and 8 in stage 3"));
  EXPECT_THAT(refusal(with("zaya_layers", [](json& list) { list.erase(79); })), HasSubstr("79 stages"));
  EXPECT_THAT(refusal(with("zaya_layers", [](json& list) { list = json::array(); })), HasSubstr("0 stages"));
  EXPECT_THAT(refusal(with("ffn_hidden_size_list", [](json& list) { list = repeated(0, 4096, 79); })),
              HasSubstr("79 entries for 80 stages"));
  EXPECT_THAT(refusal(with("num_query_groups_list", [](json& list) { list = repeated(4, 0, 80); })), HasSubstr("contradicts"));
  EXPECT_THAT(refusal(with("zaya_mlp_expansion", [](json& list) { list[1] = "many"; })), HasSubstr("zaya_mlp_expansion"));
  EXPECT_THAT(refusal(with("rope_theta", [](json& value) { value = nullptr; })), HasSubstr("rope_theta is missing"));
  EXPECT_THAT(refusal(with("num_attention_heads", [](json& value) { value = 0; })), HasSubstr("num_attention_heads is 0"));
}

// Whatever stands in a field, it is read or refused by an error of ours.
TEST_F(ZayaFolder, fuzz_wrong_values_are_settings_or_errors) {
  const auto values = json::parse(R"([null, true, false, -1, 0, 3, 1e300, 9223372036854775808, "x", [], [1], ["a", 16], {}, {"x": [1]}])");
  int read_ones = 0;
  for (const auto& whole : {scalars(), lists()})
    for (const auto& [name, _] : whole.items())
      for (const auto& value : values) {
        auto config = whole;
        config[name] = value;
        try {
          read(config);
          ++read_ones;
        } catch (const base::Error&) {
        }
      }
  EXPECT_GT(read_ones, 0);
}

}  // namespace
}  // namespace ingot::models
