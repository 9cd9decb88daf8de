// Who chooses the experts of each token in a mixture (moe.h). Made and declared like a token mixer (token_mixer.h).
#pragma once

#include <memory>

#include "layers/router.h"
#include "models/parts/block_context.h"

namespace ingot::models {

namespace decode {
class Program;
struct Choices;
}  // namespace decode

class Router {
 public:
  explicit Router(const BlockContext& block) : block_(block) {}
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;
  virtual ~Router() = default;

  /// `prefix`: "model.layers.<layer>.mlp.gate."
  virtual void declare(const std::string& prefix) = 0;
  /// x [tokens, hidden], normed; `state`: of the last router before that has one.
  virtual layers::Routing route(const at::Tensor& x, const at::Tensor& state, const layers::ChooseClasses& choose) const = 0;
  /// As TokenMixer's: the last of them leaves what it chose in `choices`.
  virtual bool add_decode_steps(decode::Program& /*program*/, const std::shared_ptr<decode::Choices>& /*choices*/) const { return false; }
  virtual void initialise() {}

  /// Experts first, then what else a token may choose.
  virtual int64_t classes() const = 0;
  virtual int64_t state_width() const { return 0; }
  virtual layers::Parameter* balancing_bias() const = 0;

 protected:
  const ModelConfig& config() const { return block_.config(); }

  const BlockContext& block_;
};

}  // namespace ingot::models
