#include "layers/recompute.h"

#include <ATen/core/grad_mode.h>

#include <memory>

#include "base/work_scope.h"
#include "layers/autograd.h"

namespace ingot::layers {
namespace {

thread_local bool recomputing = false;

struct RecomputingGuard {
  bool before = std::exchange(recomputing, true);
  ~RecomputingGuard() { recomputing = before; }
};

struct RecomputeFunction : Function<RecomputeFunction, Work::Rule::passes> {
  static TensorList forward(Context& context, const TensorList& inputs, const TensorFunction& function) {
    context.keep(function);
    context.save(inputs);
    const at::NoGradGuard no_grad;
    return function(inputs);
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    TensorList inputs;
    for (const auto& tensor : saved)
      inputs.push_back(tensor.defined() ? tensor.detach().set_requires_grad(tensor.requires_grad()) : tensor);
    TensorList outputs, output_grads;
    {
      const at::AutoGradMode with_grad(true);
      const RecomputingGuard guard;
      const auto all = [&] {
        const base::WorkScope scope("recompute", base::Work::Rule::again);
        return context.kept<TensorFunction>()(inputs);
      }();
      for (size_t i = 0; i < all.size(); ++i) {
        if (!all[i].defined() || !all[i].requires_grad() || !grads[i].defined()) continue;
        outputs.push_back(all[i]);
        output_grads.push_back(grads[i]);
      }
      // Into the leaves: the detached inputs and the model's small parameters.
      if (!outputs.empty()) kernels::backward(outputs, output_grads);
    }
    TensorList input_grads;
    for (const auto& input : inputs) input_grads.push_back(input.defined() ? input.grad() : input);
    return input_grads;
  }
};

}  // namespace

bool is_recomputing() { return recomputing; }

std::vector<at::Tensor> recompute(TensorFunction function, const std::vector<at::Tensor>& inputs) {
  return RecomputeFunction::apply(inputs, function);
}

}  // namespace ingot::layers
