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
  auto c = llama_like_from_hugging_face(HuggingFaceFields(json));
  c.family = "llama";
  return c;
}

nlohmann::json to_hugging_face(const ModelConfig& c) {
  auto json = llama_like_to_hugging_face(c);
  json["model_type"] = "llama";
  json["architectures"] = {"LlamaForCausalLM"};
  return json;
}

}  // namespace

Family llama_family() {
  return {"llama", "llama",
          [](const ModelConfig& c, const Layout& layout) -> std::unique_ptr<Model> { return std::make_unique<Llama>(c, layout); },
          from_hugging_face, to_hugging_face};
}

}  // namespace ingot::models
