#include "kernels/differentiable.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include "base/work_scope.h"

namespace ingot::kernels {

using torch::autograd::AutogradContext;

// The one autograd function that torch sees. It takes defined tensors only; the others are left out and put back here.
struct Node : torch::autograd::Function<Node> {
  struct Holder : torch::CustomClassHolder {
    Context context;
    Backward backward = nullptr;
    const char* name = "";
    Work work;
  };

  static TensorList forward(AutogradContext* torch, at::TensorList /*inputs*/, const c10::intrusive_ptr<Holder>& holder,
                            const Forward& forward) {
    torch->saved_data["holder"] = c10::IValue::make_capsule(holder);
    holder->context.torch_ = torch;
    return forward(holder->context);
  }

  static TensorList backward(AutogradContext* torch, const TensorList& grads) {
    const auto holder = c10::static_intrusive_pointer_cast<Holder>(torch->saved_data["holder"].toCapsule());
    auto& context = holder->context;
    context.torch_ = torch;
    const base::WorkScope scope(holder->name, holder->work);
    auto all = holder->backward(context, grads);
    all.resize(context.is_defined_.size());
    TensorList of_defined;
    for (size_t i = 0; i < all.size(); ++i)
      if (context.is_defined_[i]) of_defined.push_back(std::move(all[i]));
    of_defined.resize(of_defined.size() + 2);  // of the holder and of the function
    return of_defined;
  }

  static TensorList call(const TensorList& inputs, const Forward& forward, Backward backward, const char* name, Work work) {
    const base::WorkScope scope(name, work);
    auto holder = c10::make_intrusive<Holder>();
    holder->backward = backward;
    holder->name = name;
    holder->work = work;
    TensorList defined;
    for (const auto& input : inputs) {
      holder->context.is_defined_.push_back(input.defined());
      if (input.defined()) defined.push_back(input);
    }
    return apply(at::TensorList(defined), holder, forward);
  }
};

void Context::save(TensorList tensors) { torch_->save_for_backward(std::move(tensors)); }

TensorList Context::saved() const { return torch_->get_saved_variables(); }

void Context::leave_unused_gradients_undefined() { torch_->set_materialize_grads(false); }

bool Context::needs_gradient(size_t tensor) const {
  if (!is_defined_[tensor]) return false;
  return torch_->needs_input_grad(
      static_cast<size_t>(std::count(is_defined_.begin(), is_defined_.begin() + static_cast<std::ptrdiff_t>(tensor), true)));
}

TensorList differentiable(const TensorList& inputs, const Forward& forward, Backward backward, const char* name, Work work) {
  return Node::call(inputs, forward, backward, name, work);
}

const char* plain_name_of(const std::type_info& type) {
  static std::mutex mutex;
  static std::set<std::string> names;
  const std::string whole = c10::demangle(type.name());
  const std::lock_guard lock(mutex);
  const size_t colon = whole.rfind("::");
  return names.insert(colon == std::string::npos ? whole : whole.substr(colon + 2)).first->c_str();
}

void backward(const TensorList& outputs, TensorList output_grads) {
  const base::WorkScope scope("backward", Work::Rule::backward);
  if (output_grads.empty())
    for (const auto& output : outputs) output_grads.push_back(at::ones_like(output));
  torch::autograd::backward(outputs, output_grads);
}

TensorList gradients(const TensorList& outputs, const TensorList& inputs, const TensorList& output_grads) {
  return torch::autograd::grad(outputs, inputs, output_grads);
}

}  // namespace ingot::kernels
