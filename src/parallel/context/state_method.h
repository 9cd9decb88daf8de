// How the states of linear attention get from rank to rank (parallel/context/linear_attention.h runs them and says what each sends).
//
// A method is one file that defines one of these objects, and a line in state_methods().
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/aten.h"
#include "kernels/linear_attention.h"

namespace ingot::parallel {

struct ContextAxis;

/// What is known of every rank's tokens before anything is sent.
struct StateRun {
  bool is_delta = false;
  bool decay_is_known = false;     // without being sent: a constant, or none
  std::vector<at::Tensor> begins;  // bool [batch] of each rank: rows in which a document begins among its tokens; undefined without
  int64_t tokens = 0;              // of each rank
  at::Tensor constant_gate;        // where it is known: [heads], logarithmic, a token; undefined = none
};

class StateMethod {
 public:
  virtual ~StateMethod() = default;
  /// Of parallel.state_method.
  virtual const char* name() const = 0;
  /// Whether a rank works on its own tokens while states travel; never under the delta rule, where all hangs on the state.
  virtual bool overlaps() const { return true; }

  struct Before {
    at::Tensor state;        // before this rank's tokens, [batch, heads, key_dim, value_dim]; undefined on the first rank
    at::Tensor transitions;  // kept for backward
  };
  /// `own`: what this rank's tokens do to a state. `meanwhile`: the rank's own work, run once.
  virtual Before forward(const ContextAxis& axis, const StateRun& run, const kernels::LinearAttentionMap& own,
                         const std::function<void()>& meanwhile) const = 0;
  /// `own`: the gradient of the state before this rank's tokens that comes from them; `log_decay` and `transitions` as forward had and
  /// returned them -> the gradient of the state behind them; undefined on the last rank.
  virtual at::Tensor backward(const ContextAxis& axis, const StateRun& run, const at::Tensor& own, const at::Tensor& log_decay,
                              const at::Tensor& transitions, const std::function<void()>& meanwhile) const = 0;
};

extern const StateMethod &kLasp2, &kLasp1, &kZeco;

const std::vector<const StateMethod*>& state_methods();
/// Throws ConfigError for an unknown name.
const StateMethod& state_method(const std::string& name);

}  // namespace ingot::parallel
