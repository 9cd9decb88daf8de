// The first half of a block: what mixes the tokens of each document. One file of this folder for each kind, which says what it can do.
//
// A mixer is made for every layer of the model; its constructor checks settings and layout and throws ConfigError. Only where the layer
// lies are parameters declared, and only there does it compute.
#pragma once

#include "base/error.h"
#include "layers/score_clip.h"
#include "models/parts/block_context.h"

namespace ingot::models {

namespace decode {
class Program;
}

class TokenMixer {
 public:
  TokenMixer(const BlockContext& block, int64_t layer) : block_(block), layer_(layer) {}
  TokenMixer(const TokenMixer&) = delete;
  TokenMixer& operator=(const TokenMixer&) = delete;
  virtual ~TokenMixer() = default;

  /// `prefix`: "model.layers.<layer>."
  virtual void declare(const std::string& prefix) = 0;
  /// The normed residual stream as it is between layers -> the branch, likewise.
  virtual at::Tensor mix(const at::Tensor& normed, ForwardContext& context) const = 0;
  /// Adds the steps that do the same for a few tokens (models/decode); false where it has none.
  virtual bool add_decode_steps(decode::Program& /*program*/) const { return false; }
  /// Of full layers; a sliding one keeps its own.
  virtual void set_rope_base(double /*base*/) {}

  /// QK-clip (layers/score_clip.h), of softmax attention whose queries and keys are not normed: from now on every pass raises what comes
  /// back, [heads of this rank]; undefined elsewhere.
  virtual at::Tensor watch_scores(at::Device /*device*/) { return {}; }
  virtual std::vector<layers::RowFactors> clip_scores(const at::Tensor& /*gamma*/) const { return {}; }

  /// Whether it keeps a state of one size rather than keys and values, and costs as much for every token.
  virtual bool is_linear() const { return false; }
  /// Tokens before its own that it looks at one by one: over ranks, each has at least as many of a sequence.
  virtual int64_t halo() const { return 0; }

 protected:
  const ModelConfig& config() const { return block_.config(); }
  const parallel::Layout& layout() const { return block_.layout(); }
  const parallel::LayerSchedule& schedule() const { return block_.schedule(); }
  /// Of softmax attention: over ranks it only knows the causal mask. Throws ConfigError.
  void require_one_rank_for_rows() const {
    if (config().bidirectional && layout().sequence.is_on())
      throw base::ConfigError(
          "parallel.context or tensor_sequence = {}: softmax attention of model.bidirectional needs a row's tokens on one rank; basic "
          "linear attention does not",
          layout().sequence.size);
  }
  layers::Caches<LayerCache> caches_in(const ForwardContext& context) const {
    std::vector<LayerCache*> own;
    for (auto* by_layer : context.caches) own.push_back(&(*by_layer)[static_cast<size_t>(layer_)]);
    return layers::Caches<LayerCache>(std::move(own));
  }

  const BlockContext& block_;
  const int64_t layer_;
};

}  // namespace ingot::models
