// Which models have a GGUF form, and how their rows lie there.
#include "gguf/tensors.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "models/family.h"

namespace ingot::gguf {
namespace {

using testing::HasSubstr;

models::ModelConfig small(const std::string& family) {
  auto config = models::small_model(family);
  if (family == "gpt_oss") config.attention_bias = true;
  return config;
}

std::string refusal(const models::ModelConfig& config) {
  try {
    const auto& architecture = architecture_of(config);
    const auto model = models::create_model(config);
    model->allocate(at::kFloat);
    tensors_of(*model, architecture, Type::fp32);
  } catch (const base::Error& wrong) {
    return wrong.what();
  }
  return "";
}

TEST(GgufModels, every_family_is_written_or_refused_by_name) {
  for (const auto& family : models::families()) {
    const auto why = refusal(small(family.name));
    const bool is_unknown = family.name == "zaya1" || family.name == "linear_llama" || family.name == "fla" ||
                            family.name == "qwen3_next" || family.name == "kimi_linear";
    if (is_unknown) EXPECT_THAT(why, HasSubstr("the " + family.name + " family has no GGUF form")) << family.name;
    else if (!why.empty()) ADD_FAILURE() << family.name << ": " << why;
  }
}

TEST(GgufModels, settings_that_llama_cpp_has_not_are_refused_with_the_reason) {
  auto gemma = small("gemma2");
  gemma.softmax_scale = 0.7;
  EXPECT_THAT(refusal(gemma), HasSubstr("model.softmax_scale"));
  auto biased = small("qwen3");
  biased.attention_bias = true;
  EXPECT_THAT(refusal(biased), HasSubstr("self_attn.o_proj.bias"));
  auto stretched = small("qwen3");
  stretched.rope_scaling = "llama3", stretched.rope_factor = 8;
  EXPECT_THAT(refusal(stretched), HasSubstr("llama3"));
  auto mixed = small("llama");
  mixed.mixers = {"softmax", "linear"};
  EXPECT_THAT(refusal(mixed), HasSubstr("model.mixers"));
  auto every = small("smollm3");
  every.layer_types = {"full"};
  EXPECT_THAT(refusal(every), HasSubstr("every fourth"));
}

TEST(GgufModels, a_window_that_llama_cpp_lacks_bounds_the_context) {
  const auto mistral = small("mistral");
  EXPECT_EQ(context_length(mistral, architecture_of(mistral)), mistral.window);
  const auto gemma = small("gemma2");
  EXPECT_EQ(context_length(gemma, architecture_of(gemma)), gemma.max_positions);
}

TEST(GgufModels, rows_of_queries_come_with_partners_side_by_side) {
  const at::NoGradGuard no_grad;
  auto config = small("llama");
  config.heads = 2, config.kv_heads = 1, config.head_dim = 4;
  const auto model = models::create_model(config);
  model->allocate(at::kFloat);
  for (const auto& p : model->parameters().all())
    if (p->name == "model.layers.0.self_attn.q_proj.weight")
      for (int64_t row = 0; row < 8; ++row) p->value[row].fill_(static_cast<double>(row));
  for (const auto& tensor : tensors_of(*model, architecture_of(config), Type::fp32)) {
    if (tensor.name != "blk.0.attn_q.weight") continue;
    std::string bytes;
    tensor.write([&](const void* data, int64_t size) { bytes.append(static_cast<const char*>(data), static_cast<size_t>(size)); });
    for (const auto& [row, expected] : {std::pair{0, 0.0F}, {1, 2.0F}, {2, 1.0F}, {3, 3.0F}, {4, 4.0F}, {5, 6.0F}, {6, 5.0F}, {7, 7.0F}}) {
      float first = -1;
      std::memcpy(&first, bytes.data() + static_cast<int64_t>(row) * config.hidden * 4, 4);
      EXPECT_EQ(first, expected) << "row " << row;
    }
  }
}

}  // namespace
}  // namespace ingot::gguf
