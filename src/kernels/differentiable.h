// Operations whose gradient is written by hand. Deriving from torch's own autograd::Function costs a file 10 s of compilation;
// here one file pays it for all.
//
//   struct Doubled : Function<Doubled, WorkKind::elementwise> {
//     static at::Tensor forward(Context& context, const at::Tensor& x, double by) {
//       context.keep(by);
//       return x * by;
//     }
//     static TensorList backward(Context& context, const TensorList& grads) { return {grads[0] * context.kept<double>()}; }
//   };
//   y = Doubled::apply(x, 2.0);
#pragma once

#include <any>
#include <functional>
#include <optional>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "base/work_kind.h"
#include "device/aten.h"

namespace torch::autograd {
struct AutogradContext;
}

namespace ingot::kernels {

using TensorList = std::vector<at::Tensor>;
using base::Work, base::WorkKind;

/// What the forward pass of one call leaves to its backward pass.
class Context {
 public:
  /// Inputs and outputs are saved here, so that the graph does not hold itself; any of them may be undefined.
  void save(TensorList tensors);
  TensorList saved() const;
  /// Anything else. It lives as long as the graph.
  template <class T>
  void keep(T value) {
    kept_ = std::move(value);
  }
  template <class T>
  const T& kept() const {
    return std::any_cast<const T&>(kept_);
  }
  /// In backward: gradients of outputs that nobody used are undefined instead of zero.
  void leave_unused_gradients_undefined();
  /// In backward: whether the gradient of this tensor, counted among the arguments that are tensors, is asked for.
  bool needs_gradient(size_t tensor) const;

 private:
  friend struct Node;
  torch::autograd::AutogradContext* torch_ = nullptr;  // of the pass that is running
  std::vector<bool> is_defined_;                       // by input
  std::any kept_;
};

using Forward = std::function<TensorList(Context&)>;
/// Gradients of the outputs to gradients of the inputs, in order; those at the end that have none may be left out.
using Backward = TensorList (*)(Context&, const TensorList& grads);

/// What `forward` gives, with `backward` as its gradient. Inputs may be undefined. Profilers see both as a scope (base/work_scope.h) of
/// this name, which must live as long as the program, and work.
TensorList differentiable(const TensorList& inputs, const Forward& forward, Backward backward, const char* name, Work work);
/// "LinearFunction" of a type of that name in any namespace; lives as long as the program.
const char* plain_name_of(const std::type_info& type);

/// `work`: how both passes count, a WorkKind or what base/work_kind.h makes of one.
template <class T, Work work>
struct Function {
  /// T::forward(context, args...), a tensor or a list of tensors. Its inputs are the tensors among `args`, lists of them included.
  template <class... Args>
  static auto apply(Args&&... args) {
    TensorList inputs;
    (add_input(inputs, args), ...);
    static const char* const name = plain_name_of(typeid(T));
    using Result = decltype(T::forward(std::declval<Context&>(), args...));
    auto outputs = differentiable(
        inputs, [&](Context& context) { return TensorList{T::forward(context, args...)}; }, &T::backward, name, work);
    if constexpr (std::is_same_v<Result, at::Tensor>) return at::Tensor(std::move(outputs[0]));
    else return outputs;
  }

 private:
  template <class Arg>
  static void add_input(TensorList& inputs, const Arg& arg) {
    if constexpr (std::is_same_v<Arg, at::Tensor>) inputs.push_back(arg);
    if constexpr (std::is_same_v<Arg, TensorList>) inputs.insert(inputs.end(), arg.begin(), arg.end());
  }
};

/// Runs the graph of `outputs` backwards: gradients of its leaves are added up in their .grad. One gradient per output, or none
/// for outputs that are a single number.
void backward(const TensorList& outputs, TensorList output_grads = {});
/// Gradients of `inputs`, which get no .grad.
TensorList gradients(const TensorList& outputs, const TensorList& inputs, const TensorList& output_grads);

}  // namespace ingot::kernels
