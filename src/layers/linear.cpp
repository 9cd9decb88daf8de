#include "layers/linear.h"

#include "device/device.h"
#include "kernels/matmul.h"
#include "kernels/operand.h"
#include "layers/autograd.h"
#include "layers/deferred.h"

namespace ingot::layers {
namespace {

using Weights = std::vector<Parameter*>;
using kernels::OperandKind;

// scale * rows downᵀ, [rows, rank].
at::Tensor narrowed(const at::Tensor& rows, const LowRankAdapter& adapter) {
  return kernels::matmul(rows, adapter.down->value.t(), rows.scalar_type()).mul_(adapter.scale);
}

// Of out += scale * rows downᵀ upᵀ. Adds to `grad_x` where it is defined.
void adapter_backward(const LowRankAdapter& adapter, const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& grad_x,
                      DeferredGradients* deferred) {
  const auto grad_narrow = kernels::matmul(grad, adapter.up->value, grad.scalar_type()).mul_(adapter.scale);
  if (grad_x.defined()) kernels::matmul_into(grad_x, grad_narrow, adapter.down->value, /*overwrite=*/false);
  DeferredGradients::run_or_defer(deferred, [adapter, grad, rows, grad_narrow] {
    bool overwrite = false;
    auto& of_up = adapter.up->gradient_buffer(overwrite);
    kernels::matmul_into(of_up, grad.t(), narrowed(rows, adapter), overwrite);
    auto& of_down = adapter.down->gradient_buffer(overwrite);
    kernels::matmul_into(of_down, grad_narrow.t(), rows, overwrite);
  });
}

struct LinearFunction : Function<LinearFunction, WorkKind::matmul> {
  // Parameters live as long as the model.
  struct Kept {
    Weights weights;
    DeferredGradients* deferred;
  };
  // `bias`: of all outputs, in the weights' dtype, or undefined.
  static at::Tensor forward(Context& context, const at::Tensor& x, const at::Tensor& /*of a trained weight: ties the graph*/,
                            const at::Tensor& bias, const Weights& weights) {
    int64_t out_features = 0;
    for (auto* weight : weights) out_features += weight->value.size(0);
    context.keep(Kept{weights, DeferredGradients::current()});
    context.save({x});
    const auto dtype = weights[0]->value.scalar_type();
    const auto plain = as_rows(x).to(dtype);
    const auto rows = kernels::operand_of(plain, weights[0]->quantization, OperandKind::activation, 1);
    const auto operand = [](const Parameter& weight) {
      return kernels::operand_of(weight.value, weight.quantization, OperandKind::weight, 1);
    };
    auto sizes = x.sizes().vec();
    sizes.back() = out_features;
    if (weights.size() == 1 && !bias.defined() && !weights[0]->adapter)
      return kernels::matmul(rows, operand(*weights[0]), dtype).view(sizes);
    auto out = at::empty({rows.values.size(0), out_features}, x.options().dtype(dtype));
    int64_t column = 0;
    for (auto* weight : weights) {
      const int64_t width = weight->value.size(0);
      if (width == 0) continue;
      const auto columns = out.narrow(1, column, width);
      if (bias.defined()) kernels::matmul_with_bias_into(columns, rows, operand(*weight), bias.narrow(0, column, width));
      else kernels::matmul_into(columns, rows, operand(*weight), /*overwrite=*/true);
      if (const auto& adapter = weight->adapter)
        kernels::matmul_into(columns, narrowed(plain, adapter), adapter.up->value.t(), /*overwrite=*/false);
      column += width;
    }
    return out.view(sizes);
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto x = context.saved()[0];
    const auto grad = as_rows(grads[0]);
    const auto rows = as_rows(x).to(grad.scalar_type());
    const auto& [weights, deferred] = context.kept<Kept>();
    at::Tensor grad_x;
    if (context.needs_gradient(0)) grad_x = at::empty({rows.size(0), rows.size(1)}, grad.options());
    int64_t column = 0;
    for (auto* weight : weights) {
      if (weight->value.size(0) == 0) continue;
      const auto part = grad.narrow(1, column, weight->value.size(0));
      const auto quantization = weight->quantization;
      if (grad_x.defined())
        kernels::matmul_into(grad_x, kernels::operand_of(part, quantization, OperandKind::gradient, 1),
                             kernels::operand_of(weight->value, quantization, OperandKind::weight, 0), /*overwrite=*/column == 0);
      if (weight->adapter) adapter_backward(weight->adapter, part, rows, grad_x, deferred);
      if (weight->is_trained())
        DeferredGradients::run_or_defer(deferred, [weight, part, rows, quantization] {
          bool overwrite = false;
          auto& buffer = weight->gradient_buffer(overwrite);
          kernels::matmul_into(buffer, kernels::operand_of(part, quantization, OperandKind::gradient, 0),
                               kernels::operand_of(rows, quantization, OperandKind::activation, 0), overwrite);
        });
      column += weight->value.size(0);
    }
    if (grad_x.defined()) grad_x = grad_x.view(x.sizes()).to(x.scalar_type());
    return {grad_x, at::Tensor(), context.needs_gradient(2) ? grads[0].sum_to_size({grad.size(1)}) : at::Tensor()};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const std::vector<Parameter*>& weights, const std::vector<Parameter*>& biases) {
  auto tie = weights[0]->value;
  for (auto* weight : weights)
    if (weight->adapter) tie = weight->adapter.down->value;
  if (biases.empty()) return LinearFunction::apply(x, tie, at::Tensor(), weights);
  std::vector<at::Tensor> values;
  for (auto* bias : biases) values.push_back(bias->value);
  const auto bias = values.size() == 1 ? values[0] : device::cat(values);
  if (device::is_gpu(x) && bias.scalar_type() == weights[0]->value.scalar_type()) return LinearFunction::apply(x, tie, bias, weights);
  const auto out = LinearFunction::apply(x, tie, at::Tensor(), weights);
  return (out + bias).to(out.scalar_type());
}

}  // namespace ingot::layers
