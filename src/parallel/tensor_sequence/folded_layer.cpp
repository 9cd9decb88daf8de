#include "parallel/tensor_sequence/folded_layer.h"

#include <ATen/core/grad_mode.h>

#include <optional>

#include "kernels/matmul.h"
#include "layers/autograd.h"
#include "layers/deferred.h"
#include "parallel/rotation.h"
#include "parallel/tensor_sequence/packed_weights.h"

namespace ingot::parallel {
namespace {

using layers::as_rows, layers::Context, layers::DeferredGradients, layers::Function, layers::Parameter, layers::TensorList,
    layers::WorkKind;
using Inner = decltype(layers::TokenwiseLayer::inner);

std::vector<Parameter*> pointers(std::vector<Parameter>& parameters, size_t count) {
  std::vector<Parameter*> out;
  for (size_t i = 0; i < count; ++i) out.push_back(&parameters[i]);
  return out;
}

struct FoldedLayerFunction : Function<FoldedLayerFunction, WorkKind::matmul> {
  struct Kept {
    std::vector<Parameter*> weights;  // the last one last
    Inner inner;
    TensorSequenceAxis axis;
  };

  static at::Tensor forward(Context& context, const at::Tensor& x, const at::Tensor& /*ties the graph*/, const Kept& kept) {
    context.keep(kept);
    context.save({x});
    const PackedWeights packed(kept.weights);
    const auto& axis = kept.axis;
    const auto dtype = kept.weights[0]->value.scalar_type();
    auto out = at::empty({x.numel() / x.size(-1), kept.weights.back()->value.size(0)}, x.options().dtype(kept.weights[0]->wide_type()));
    auto here = packed.pack();
    for (int step = 0; step < axis.size; ++step) {
      std::optional<Rotation> rotation;
      if (step + 1 < axis.size) rotation.emplace(*axis.group, here, packed.empty_message());
      auto part = packed.view(here);
      const auto middle = kept.inner(x, pointers(part, part.size() - 1));
      kernels::matmul_into(out, as_rows(middle), part.back().value.t(), /*overwrite=*/step == 0);
      if (rotation) here = rotation->wait();
    }
    auto sizes = x.sizes().vec();
    sizes.back() = out.size(1);
    return out.view(sizes).to(dtype);
  }

  // The own part comes first, so that nobody waits for the first hop; what the others have added to its gradient comes last.
  static TensorList backward(Context& context, const TensorList& grads) {
    const auto& [weights, inner, axis] = context.kept<Kept>();
    const PackedWeights packed(weights);
    const auto x = context.saved()[0].detach();
    const auto grad_out = grads[0].contiguous();
    const DeferredGradients::Scope nothing_is_put_off(nullptr);
    auto grad_x = at::empty(x.sizes(), x.options().dtype(weights[0]->wide_type()));
    auto here = packed.pack();
    at::Tensor own;  // this rank's tokens' part of the gradient of its own weights
    std::optional<Rotation> sums_on_their_way;
    for (int step = 0; step < axis.size; ++step) {
      std::optional<Rotation> rotation;
      if (step + 1 < axis.size) rotation.emplace(*axis.group, here, packed.empty_message());
      const auto gradients = packed.empty_gradients();
      visit(packed, inner, x, grad_out, here, gradients, grad_x, step == 0);
      if (step == 0) own = gradients;
      if (step > 1) gradients.add_(sums_on_their_way->wait());
      if (step > 0) sums_on_their_way.emplace(*axis.group, gradients, packed.empty_gradients());
      if (rotation) here = rotation->wait();
    }
    packed.accumulate(own.add_(sums_on_their_way->wait()));
    return {grad_x.to(x.scalar_type())};
  }

 private:
  // With the part of the weights in `message`: its gradient from these tokens, and what it adds to that of x.
  static void visit(const PackedWeights& packed, const Inner& inner, const at::Tensor& x, const at::Tensor& grad_out,
                    const at::Tensor& message, const at::Tensor& gradients, const at::Tensor& grad_x, bool is_first) {
    auto part = packed.view(message, {}, gradients);
    const auto leaf = x.detach().set_requires_grad(true);
    at::Tensor middle;
    {
      const at::AutoGradMode with_grad(true);
      middle = inner(leaf, pointers(part, part.size() - 1));
    }
    auto& last = part.back();
    const auto rows = as_rows(grad_out).to(last.value.scalar_type()), middle_rows = as_rows(middle.detach());
    bool overwrite = false;
    auto& buffer = last.gradient_buffer(overwrite);
    kernels::matmul_into(buffer, rows.t(), middle_rows, overwrite);
    const auto grad_middle = kernels::matmul(rows, last.value.detach(), middle.scalar_type());
    kernels::backward({middle}, {grad_middle.view(middle.sizes())});
    PackedWeights::finish(part);
    is_first ? grad_x.copy_(leaf.grad()) : grad_x.add_(leaf.grad());
  }
};

}  // namespace

at::Tensor folded_layer(const at::Tensor& x, const layers::TokenwiseLayer& layer, const TensorSequenceAxis& axis) {
  auto all = layer.weights;
  all.push_back(layer.last);
  return FoldedLayerFunction::apply(x, layer.last->value, FoldedLayerFunction::Kept{std::move(all), layer.inner, axis});
}

}  // namespace ingot::parallel
