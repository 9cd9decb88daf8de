#include "kernels/update.h"

#include <cmath>

#include "device/stream.h"
#include "device/virtual_device.h"
#include "kernels/cpu/rows_update.h"
#include "kernels/row_kernel.h"
#include "kernels/stochastic_rounding.h"

namespace ingot::kernels {
namespace {

constexpr int64_t kGrain = 16384;

bool are_plain(const at::Tensor& master, const at::Tensor& other) {
  return master.scalar_type() == at::kFloat && other.scalar_type() == at::kFloat && master.is_contiguous() && other.is_contiguous();
}

// Where the bf16 copy goes, or undefined.
at::Tensor narrow_of(const at::Tensor& master, const at::Tensor& value) {
  return value.scalar_type() == at::kBFloat16 && value.is_contiguous() && value.numel() == master.numel() ? value : at::Tensor();
}

bool is_bf16(const at::Tensor& state) { return state.scalar_type() == at::kBFloat16; }

// libtorch's fused kernel: a pass over everything instead of ten.
bool takes_fused_adamw(const at::Tensor& master, const at::Tensor& grad) { return device::is_gpu(master) && are_plain(master, grad); }

void publish(const at::Tensor& master, at::Tensor& value) {
  if (value.data_ptr() != master.data_ptr()) value.copy_(master);
}

// The same at its own pace: counted as one kernel, computed by the host's.
void fused_adamw_of_virtual_device(const at::Tensor& master, const at::Tensor& grad, const at::Tensor& first, const at::Tensor& second,
                                   const AdamwStep& s) {
  device::note("adamw", {master, grad, first, second}, {master, first, second}, 0);
  if (device::is_counting(master)) return;
  device::launch({master, grad, first, second}, [s](const auto& host) { adamw_update(host[0], host[1], host[2], host[3], host[0], s); });
}

}  // namespace

void adamw_update(at::Tensor master, const at::Tensor& grad, at::Tensor first, at::Tensor second, at::Tensor value, const AdamwStep& s) {
  const double correction1 = 1 - std::pow(s.beta1, static_cast<double>(s.step)),
               correction2 = 1 - std::pow(s.beta2, static_cast<double>(s.step));
  if (device::is_cpu(master) && are_plain(master, grad)) {
    const auto narrow = narrow_of(master, value);
    cpu::AdamwProblem p{};
    p.rows = master.numel();
    p.master = numbers(master);
    p.grad = numbers(grad);
    if (is_bf16(first)) {
      p.bf16_first = static_cast<uint16_t*>(address(first));
      p.bf16_second = static_cast<uint16_t*>(address(second));
      p.rounding_key = s.rounding_key;
    } else {
      p.first = numbers(first);
      p.second = numbers(second);
    }
    p.narrow = static_cast<uint16_t*>(address(narrow));
    p.lr = s.lr;
    p.beta1 = s.beta1;
    p.beta2 = s.beta2;
    p.eps = s.eps;
    p.decay = s.weight_decay;
    p.gradient_scale = s.gradient_scale;
    p.correction1 = correction1;
    p.correction2 = correction2;
    if (!device::counted("adamw", {master, grad, first, second}, {master, first, second, narrow}, 0))
      cpu::parallel_rows(p.rows, kGrain, [&](int64_t begin, int64_t end) { cpu::adamw(p, begin, end); });
    return;
  }
  if (is_bf16(first)) {
    const auto fp32_first = first.to(at::kFloat), fp32_second = second.to(at::kFloat);
    adamw_update(master, grad, fp32_first, fp32_second, value, s);
    first.copy_(round_stochastically(fp32_first, s.rounding_key));
    second.copy_(round_stochastically(fp32_second, ~s.rounding_key));
    return;
  }
  if (takes_fused_adamw(master, grad)) {
    if (device::is_virtual(master.device())) {
      fused_adamw_of_virtual_device(master, grad, first, second, s);
      return publish(master, value);
    }
    const auto number = [&](double value) { return at::full({}, value, master.options()); };
    std::optional<at::Tensor> grad_scale;  // what it divides by
    if (s.gradient_scale != 1) grad_scale = number(1 / s.gradient_scale);
    at::_fused_adamw_({master}, {grad}, {first}, {second}, {}, {number(static_cast<double>(s.step))}, s.lr, s.beta1, s.beta2,
                      s.weight_decay, s.eps, /*amsgrad=*/false, /*maximize=*/false, grad_scale, {});
    return publish(master, value);
  }
  const auto g = s.gradient_scale == 1 ? grad : grad * s.gradient_scale;
  if (s.weight_decay > 0) master.mul_(1 - s.lr * s.weight_decay);
  first.mul_(s.beta1).add_(g, 1 - s.beta1);
  second.mul_(s.beta2).addcmul_(g, g, 1 - s.beta2);
  master.addcdiv_(first, (second / correction2).sqrt_().add_(s.eps), -s.lr / correction1);
  publish(master, value);
}

at::Tensor momentum_update(at::Tensor momentum, const at::Tensor& grad, const MomentumStep& s) {
  constexpr const char* kSymbol = "ingot_momentum";
  if (is_bf16(momentum) && !device::is_cpu(momentum)) {
    const auto fp32 = momentum.to(at::kFloat);
    auto direction = momentum_update(fp32, grad, s);
    momentum.copy_(round_stochastically(fp32, s.rounding_key));
    return direction;
  }
  if (takes_rows(momentum, kSymbol) && are_plain(grad, grad) && momentum.is_contiguous()) {
    auto direction = at::empty_like(grad);
    cpu::MomentumProblem p{};
    p.rows = momentum.numel();
    p.rounding_key = s.rounding_key;
    p.mu = s.mu;
    p.gradient_scale = s.gradient_scale;
    p.nesterov = s.nesterov;
    const auto bind = [](cpu::MomentumProblem& p, const RowTensors& t) {
      if (is_bf16(t.in[0])) p.bf16_momentum = static_cast<uint16_t*>(address(t.in[0]));
      else p.momentum = numbers(t.in[0]);
      p.grad = numbers(t.in[1]);
      p.direction = numbers(t.out[1]);
    };
    run_rows(RowCall<cpu::MomentumProblem>{"momentum", kSymbol, {{momentum, grad}, {momentum, direction}, {}}, p, bind, kGrain},
             cpu::momentum);
    return direction;
  }
  momentum.mul_(s.mu).add_(grad, s.gradient_scale);
  return s.nesterov ? (grad * s.gradient_scale).add_(momentum, s.mu) : momentum.clone();
}

void apply_direction(at::Tensor master, const at::Tensor& direction, at::Tensor value, double keep, double step) {
  constexpr const char* kSymbol = "ingot_apply_direction";
  if (takes_rows(master, kSymbol) && are_plain(master, direction)) {
    cpu::ApplyProblem p{};
    p.rows = master.numel();
    p.keep = keep;
    p.step = step;
    const auto bind = [](cpu::ApplyProblem& p, const RowTensors& t) {
      p.master = numbers(t.in[0]);
      p.direction = numbers(t.in[1]);
      p.narrow = static_cast<uint16_t*>(address(t.out[1]));
    };
    const RowTensors tensors{{master, direction}, {master, narrow_of(master, value)}, {}};
    run_rows(RowCall<cpu::ApplyProblem>{"apply_direction", kSymbol, tensors, p, bind, kGrain}, cpu::apply);
    return;
  }
  master.mul_(keep).sub_(direction.to(master.scalar_type()), step);
  publish(master, value);
}

}  // namespace ingot::kernels
