// A model: embedding, blocks, head. A block is a token mixer and a feed-forward, each behind a norm, each added to the residual stream;
// which ones, a family says for every layer (parts/layer_parts.h, family.h). What a model can do is asked of its parts.
//
// Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2; model.mtp_layers): behind the model, one predictor for each further
// token. It norms the state that came so far (of the first: normed for the head) and the embedding of the next token, joins the two by a
// matrix, runs a block like the last one, norms, and takes the model's head. Its parameters lie at the depth of the head.
//
// A model is used by one thread at a time. It must outlive the graphs made with it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/aten.h"
#include "layers/dtype.h"
#include "layers/head.h"
#include "layers/parameter.h"
#include "models/config.h"
#include "models/family.h"
#include "models/forward_context.h"
#include "models/parts/layer_parts.h"
#include "parallel/layout.h"

namespace ingot::models {

namespace decode {
class Decoder;
}

class Model {
 public:
  /// Checks the sizes and declares the parameters; nothing is allocated yet. Throws ConfigError.
  explicit Model(ModelConfig config, const parallel::Layout& layout = {});
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const { return config_; }
  const parallel::Layout& layout() const { return layout_; }
  layers::ParameterList& parameters() { return parameters_; }
  const layers::ParameterList& parameters() const { return parameters_; }
  /// Allocates all parameters. In FP8 the GEMMs of all blocks but the first and the last round their operands.
  void allocate(const layers::Precision& precision, at::Device device = at::kCPU);
  /// The same with memory that is there already: `value_of` gives a parameter's [local_shape()] in the dtype asked for, on `device`.
  void take_values(const layers::Precision& precision, at::Device device,
                   const std::function<at::Tensor(const layers::Parameter&, at::ScalarType dtype)>& value_of);
  /// Initial values as a pure function of (seed, name, index).
  void initialise(uint64_t seed);
  at::ScalarType dtype() const { return block_.dtype(); }
  at::Device device() const { return device_; }

  /// Blocks: layers, and behind them those of the predictors.
  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t predictors() const { return config_.mtp_layers; }

  // What its parts can do, of any block, whichever rank holds it.
  /// Whether a layer keeps a state of one size rather than keys and values.
  bool mixes_linearly(int64_t layer) const { return at(layer).mixer->is_linear(); }
  bool has_experts(int64_t layer) const { return at(layer).feed_forward->classes() > 0; }
  bool has_experts() const { return routing_classes() > 0; }
  /// Classes among which routers choose, experts first; 0 = no layer has experts.
  int64_t routing_classes() const;
  /// Whether blocks pass on a router's state, and its width.
  int64_t router_state_width() const;
  /// Tokens before its own that a layer may look at one by one: over ranks, each has at least as many of a sequence.
  int64_t halo() const;
  /// What layers remember of a text that is being continued, by layer: nothing yet.
  std::vector<LayerCache> new_caches() const;
  /// The balancing bias of a layer's router; null where there is none.
  layers::Parameter* balancing_bias(int64_t layer) { return at(layer).feed_forward->balancing_bias(); }

  void set_routing_replay(RoutingReplay replay) { block_.set_routing_replay(std::move(replay)); }
  /// QK-clip (layers/score_clip.h): what every pass from now on raises, [heads of this rank], by layer; undefined where nothing can be
  /// clipped.
  std::vector<at::Tensor> watch_scores();
  std::vector<layers::RowFactors> clip_scores(int64_t layer, const at::Tensor& gamma) const { return at(layer).mixer->clip_scores(gamma); }
  /// Of what the head's gradient is besides (layers/head.h).
  void set_z_loss(double coefficient) { head_rule_.z_loss = coefficient; }
  /// Later phases of a run may move the RoPE base: that of full layers, sliding ones keep theirs.
  void set_rope_base(double base);

  /// ids int64 [batch, seq] -> normed hidden state [batch, seq, hidden] in the compute dtype, ready for the head.
  at::Tensor forward(const at::Tensor& ids, ForwardContext& context);
  /// A chunk of a pipeline stage: its layers, behind the embedding of `ids` if it is the model's first piece, else behind `in`.
  Stream run_chunk(int chunk, const at::Tensor& ids, const Stream& in, ForwardContext& context);
  /// The loss (as below) of what came out of the model's last piece. With context.further the predictors' losses are in its gradient.
  at::Tensor loss_of(const Stream& stream, const at::Tensor& targets, double scale, ForwardContext& context);
  /// For those who count: what the predictors need, of `ids`; null without predictors.
  std::shared_ptr<const FurtherTargets> further_like(const at::Tensor& ids) const;
  /// Sum of the losses of all positions times `scale` (0-dim), to be backpropagated with gradient 1. With context.learns_drafts half of it,
  /// and half of the sum over the drafts of the same tokens (TiDAR, arXiv 2511.08923, eq. 4).
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& targets, double scale, ForwardContext& context);
  /// [batch, seq, vocab] of a hidden state, fp32 (fp64 for fp64); no gradient. On a tensor_sequence axis that all ranks have alike.
  at::Tensor logits(const at::Tensor& hidden) const;

  /// Forward plus backward, per token (convention: layers/cost.h).
  double training_flops_per_token(int64_t seq) const;
  /// Trained elements that one token's forward pass touches, embedding and head left out.
  int64_t active_elements() const;

 private:
  friend class decode::Decoder;  // the same computation for a few tokens at a time

  struct Block {
    Norm before_mixer, behind_mixer, before_feed_forward, behind_feed_forward;  // some are not there
    std::unique_ptr<TokenMixer> mixer;
    std::unique_ptr<FeedForward> feed_forward;
    ResidualAdd after_mixer, after_feed_forward;
  };
  struct Predictor {
    Norm of_embedding, of_state, last;
    layers::Parameter* join = nullptr;  // [hidden, 2 hidden]: of the embedding, of the state
  };
  void set_precision(const layers::Precision& precision, at::Device device);
  const Block& at(int64_t layer) const { return blocks_[static_cast<size_t>(layer)]; }
  void make_blocks(const std::vector<LayerParts>& parts);
  void declare(int64_t layer, const LayerParts& parts, Block& block);
  void declare_predictors(const LayerParts& parts);
  /// Embedding, and the head unless it is the embedding; both cut by rows of the vocabulary.
  void declare_embedding();
  void declare_head();
  /// Of blocks, those of predictors included.
  bool is_here(int64_t layer) const;
  layers::Parameter& vocabulary_matrix(const char* name, layers::Parameter::Kind kind);

  /// The embedding of this rank's tokens, as it is between layers; fp32 (fp64).
  Stream embed(const at::Tensor& ids, const ForwardContext& context) const;
  /// What joins the residual stream of a branch: normed where there is a norm behind it, and scaled.
  at::Tensor normed(const Norm& norm, const at::Tensor& branch) const;
  /// The residual with the mixer's branch, and what the feed-forward reads of it.
  std::pair<at::Tensor, at::Tensor> join_and_norm(const Block& block, const at::Tensor& residual, const at::Tensor& mixed) const;
  Stream run_block(int64_t layer, const Stream& stream, ForwardContext& context);
  Stream run_block_again_in_backward(int64_t layer, const Stream& stream, const ForwardContext& context);
  Stream run_block_of(int64_t layer, const Stream& stream, ForwardContext& context);
  at::Tensor finish(const Stream& stream) const;
  at::Tensor loss_with_drafts(const at::Tensor& ids, const at::Tensor& targets, double scale, ForwardContext context);
  void require_drafts_fit() const;
  at::Tensor head_loss(const at::Tensor& normed, const at::Tensor& targets, double scale, const ForwardContext& context) const;
  /// `loss` with the predictors' losses in its gradient. `normed`: what the head took.
  at::Tensor with_further_losses(const at::Tensor& loss, const at::Tensor& normed, const at::Tensor& router_state, double scale,
                                 ForwardContext& context);

  ModelConfig config_;
  parallel::Layout layout_;
  layers::ParameterList parameters_;
  BlockContext block_;
  at::Device device_ = at::kCPU;
  std::vector<Block> blocks_;
  InputScale input_scale_;
  double embedding_scale_ = 1;
  layers::Parameter* embedding_ = nullptr;
  Norm norm_;
  std::vector<Predictor> predictors_;
  layers::HeadRule head_rule_;
  layers::Parameter* head_ = nullptr;  // the embedding when tied
};

std::unique_ptr<Model> create_model(const ModelConfig& config, const parallel::Layout& layout = {});

}  // namespace ingot::models
