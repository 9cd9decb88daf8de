// What the families with Llama's blocks share: pre-norm blocks of something that mixes tokens and a gated MLP, between an
// embedding and a head. A family says what mixes the tokens of each layer.
#pragma once

#include <string>
#include <vector>

#include "layers/softmax_attention.h"
#include "models/hugging_face_config.h"
#include "models/model.h"

namespace ingot::models {

class LlamaLike : public Model {
 public:
  void describe_block(int64_t layer, layers::Workload& work) const override;
  int64_t active_elements() const override;

 protected:
  LlamaLike(const ModelConfig& config, const Layout& layout) : Model(config, layout) {}

  /// Checks the config and declares all parameters; called by constructors of families, whose declare_mixing it calls.
  void declare();

  /// Declares what mixes the tokens of a layer; `prefix` is that of the layer's names.
  virtual void declare_mixing(int64_t layer, const std::string& prefix) = 0;
  /// The normed residual stream as it is between layers -> the branch, likewise.
  virtual at::Tensor mix(int64_t layer, const at::Tensor& normed, ForwardContext& context) = 0;
  virtual layers::ActivationId describe_mixing(int64_t layer, layers::Workload& work, layers::ActivationId normed) const = 0;

  // Softmax attention as one way to mix.
  struct Softmax {
    layers::SoftmaxAttention attention;
    layers::Parameter* out_bias = nullptr;
  };
  Softmax declare_softmax(int64_t layer, const std::string& prefix);
  at::Tensor mix_by(const Softmax& softmax, int64_t layer, const at::Tensor& normed, ForwardContext& context);
  layers::ActivationId describe_softmax(int64_t layer, layers::Workload& work, layers::ActivationId normed) const;

  layers::ActivationId describe_folded_softmax(int64_t layer, layers::Workload& work, layers::ActivationId normed) const;

  /// Products with weights [out_i, in], and the biases on top.
  static layers::ActivationId describe_linear(layers::Workload& work, layers::ActivationId from, const std::vector<int64_t>& outs,
                                              bool biased);
  static layers::ActivationId describe_bias(layers::Workload& work, layers::ActivationId product);

  Stream embed(const at::Tensor& ids, const ForwardContext& context) override;
  Stream block(int64_t layer, const Stream& stream, ForwardContext& context) override;
  at::Tensor finish(const Stream& stream) override;

 private:
  struct Block {
    layers::Parameter *attention_norm, *mlp_norm;
    layers::Parameter *gate, *up, *down, *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
  };
  Block declare_block(int64_t layer);
  layers::ActivationId describe_mlp(layers::Workload& work, layers::ActivationId x) const;
  at::Tensor mlp(const Block& block, const at::Tensor& x, const layers::Sequences& sequences) const;

  std::vector<Block> blocks_;
  layers::Parameter* norm_ = nullptr;
};

/// What these families have alike in their config.json. Throws ConfigError for a sliding window, which none of them has there.
ModelConfig llama_like_from_hugging_face(const HuggingFaceFields& fields);
nlohmann::json llama_like_to_hugging_face(const ModelConfig& config);

}  // namespace ingot::models
