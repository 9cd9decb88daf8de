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
  struct Piece {
    TensorFunction function;
    std::shared_ptr<ActivationOffload> offload;  // null: autograd keeps the inputs
    size_t number = 0;
    std::vector<bool> learns;  // inputs whose gradient is asked for
  };

  static TensorList forward(Context& context, const TensorList& inputs, const TensorFunction& function,
                            const std::shared_ptr<ActivationOffload>& offload) {
    Piece piece{.function = function, .offload = offload, .number = 0, .learns = {}};
    for (const auto& input : inputs) piece.learns.push_back(input.defined() && input.requires_grad());
    if (offload) piece.number = offload->keep(inputs);
    else context.save(inputs);
    context.keep(std::move(piece));
    const at::NoGradGuard no_grad;
    return function(inputs);
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto& piece = context.kept<Piece>();
    auto inputs = piece.offload ? piece.offload->take(piece.number) : context.saved();
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].defined()) inputs[i] = inputs[i].detach().set_requires_grad(piece.learns[i]);
    TensorList outputs, output_grads;
    {
      const at::AutoGradMode with_grad(true);
      const RecomputingGuard guard;
      const auto all = [&] {
        const base::WorkScope scope("recompute", base::Work::Rule::again);
        return piece.function(inputs);
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

std::vector<at::Tensor> recompute(TensorFunction function, const std::vector<at::Tensor>& inputs,
                                  const std::shared_ptr<ActivationOffload>& offload) {
  return RecomputeFunction::apply(inputs, function, offload);
}

}  // namespace ingot::layers
