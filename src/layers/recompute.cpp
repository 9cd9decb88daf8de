#include "layers/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "layers/autograd.h"

namespace ingot::layers {
namespace {

thread_local bool recomputing = false;

struct RecomputingGuard {
  bool before = std::exchange(recomputing, true);
  ~RecomputingGuard() { recomputing = before; }
};

// Keeps the function alive as long as the graph.
struct Holder : torch::CustomClassHolder {
  TensorFunction function;
};

struct RecomputeFunction : Function<RecomputeFunction> {
  static variable_list forward(AutogradContext* context, at::TensorList inputs, c10::intrusive_ptr<Holder> holder) {
    variable_list saved(inputs.begin(), inputs.end());
    context->saved_data["function"] = c10::IValue::make_capsule(holder);
    variable_list outputs;
    {
      const at::NoGradGuard no_grad;
      outputs = holder->function(saved);
    }
    context->save_for_backward(saved);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto holder = c10::static_intrusive_pointer_cast<Holder>(context->saved_data["function"].toCapsule());
    const auto saved = context->get_saved_variables();
    variable_list inputs;
    for (const auto& tensor : saved) inputs.push_back(tensor.detach().set_requires_grad(tensor.requires_grad()));
    variable_list outputs, output_grads;
    {
      const at::AutoGradMode with_grad(true);
      const RecomputingGuard guard;
      const auto all = holder->function(inputs);
      for (size_t i = 0; i < all.size(); ++i) {
        if (!all[i].defined() || !all[i].requires_grad() || !grads[i].defined()) continue;
        outputs.push_back(all[i]);
        output_grads.push_back(grads[i]);
      }
      // Into the leaves: the detached inputs and the model's small parameters.
      if (!outputs.empty()) torch::autograd::backward(outputs, output_grads);
    }
    variable_list input_grads;
    for (const auto& input : inputs) input_grads.push_back(input.grad());
    input_grads.emplace_back();  // of the holder
    return input_grads;
  }
};

}  // namespace

bool is_recomputing() { return recomputing; }

std::vector<at::Tensor> recompute(TensorFunction function, const std::vector<at::Tensor>& inputs) {
  // Autograd functions take defined tensors only: the others are left out here and put back inside.
  std::vector<at::Tensor> defined;
  std::vector<bool> is_defined;
  for (const auto& input : inputs) {
    is_defined.push_back(input.defined());
    if (input.defined()) defined.push_back(input);
  }
  auto holder = c10::make_intrusive<Holder>();
  holder->function = [function = std::move(function), is_defined](const std::vector<at::Tensor>& given) {
    std::vector<at::Tensor> all;
    for (size_t i = 0, next = 0; i < is_defined.size(); ++i) all.push_back(is_defined[i] ? given[next++] : at::Tensor());
    return function(all);
  };
  return RecomputeFunction::apply(at::TensorList(defined), holder);
}

}  // namespace ingot::layers
