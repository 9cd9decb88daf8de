// The second half of a block: what works on each token alone. Made and declared like a token mixer (token_mixer.h).
#pragma once

#include "models/parts/block_context.h"

namespace ingot::models {

namespace decode {
class Program;
}

class FeedForward {
 public:
  FeedForward(const BlockContext& block, int64_t layer) : block_(block), layer_(layer) {}
  FeedForward(const FeedForward&) = delete;
  FeedForward& operator=(const FeedForward&) = delete;
  virtual ~FeedForward() = default;

  /// `prefix`: "model.layers.<layer>."
  virtual void declare(const std::string& prefix) = 0;
  struct Result {
    at::Tensor branch;        // as x
    at::Tensor router_state;  // for the next router; undefined when this layer has none
  };
  /// x: the normed residual stream as it is between layers. `router_state`: of the last router before that has one.
  virtual Result forward(const at::Tensor& x, const at::Tensor& router_state, const ForwardContext& context) const = 0;
  /// As TokenMixer's.
  virtual bool add_decode_steps(decode::Program& /*program*/) const { return false; }
  /// After all parameters have their initial values: what is not a function of name and index alone.
  virtual void initialise() {}

  /// Classes among which its router chooses, experts first; 0 = no experts.
  virtual int64_t classes() const { return 0; }
  virtual int64_t router_state_width() const { return 0; }
  virtual layers::Parameter* balancing_bias() const { return nullptr; }
  /// Trained elements, of the whole layer, that one token leaves alone.
  virtual int64_t idle_elements() const { return 0; }

 protected:
  const ModelConfig& config() const { return block_.config(); }
  const parallel::Layout& layout() const { return block_.layout(); }
  const parallel::LayerSchedule& schedule() const { return block_.schedule(); }

  const BlockContext& block_;
  const int64_t layer_;
};

}  // namespace ingot::models
