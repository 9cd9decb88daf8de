// Llama 2 and 3: softmax attention of grouped queries in every block.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/hugging_face_config.h"
#include "models/llama_like.h"

namespace ingot::models {
namespace {

class Llama final : public LlamaLike {
 public:
  Llama(const ModelConfig& config, const Layout& layout) : LlamaLike(config, layout), mixing_(static_cast<size_t>(config.layers)) {
    declare();
  }

  void set_rope_base(double base) override {
    config_.rope_base = base;
    for (int64_t layer = 0; layer < config_.layers; ++layer)
      if (!config_.is_sliding(layer)) mixing_[static_cast<size_t>(layer)].attention.rotary.base = base;
  }

 protected:
  void declare_mixing(int64_t layer, const std::string& prefix) override {
    mixing_[static_cast<size_t>(layer)] = declare_softmax(layer, prefix);
  }
  at::Tensor mix(int64_t layer, const at::Tensor& normed, ForwardContext& context) override {
    return mix_by(mixing_[static_cast<size_t>(layer)], layer, normed, context);
  }
  layers::ActivationId describe_mixing(int64_t layer, layers::Workload& work, layers::ActivationId normed) const override {
    return describe_softmax(layer, work, normed);
  }

 private:
  std::vector<Softmax> mixing_;  // by layer
};

ModelConfig from_hugging_face(const nlohmann::json& json) {
  const HuggingFaceFields fields(json);
  ModelConfig c = fields.common();
  c.family = "llama";
  c.ffn = fields.integer("intermediate_size");
  c.attention_bias = fields.boolean("attention_bias", false);
  c.mlp_bias = fields.boolean("mlp_bias", false);
  fields.refuse_unless("hidden_act", "silu");
  fields.read_rope(c, fields.rope());
  return c;
}

nlohmann::json to_hugging_face(const ModelConfig& c) {
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    if (c.is_sliding(layer))
      throw base::ConfigError("layer {} has a sliding window, which Hugging Face's llama does not know: this model cannot be exported",
                              layer);
  }
  auto json = common_hugging_face_config(c);
  json["model_type"] = "llama";
  json["architectures"] = {"LlamaForCausalLM"};
  json["intermediate_size"] = c.ffn;
  json["attention_bias"] = c.attention_bias;
  json["mlp_bias"] = c.mlp_bias;
  json["hidden_act"] = "silu";
  json["rope_parameters"] = hugging_face_rope(c, c.rope_base);
  return json;
}

}  // namespace

Family llama_family() {
  return {"llama", "llama",
          [](const ModelConfig& c, const Layout& layout) -> std::unique_ptr<Model> { return std::make_unique<Llama>(c, layout); },
          from_hugging_face, to_hugging_face};
}

}  // namespace ingot::models
