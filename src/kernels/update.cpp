#include "kernels/update.h"

#include <algorithm>
#include <cmath>

#include "device/device.h"
#include "kernels/cpu/rows_update.h"
#include "kernels/row_kernel.h"
#include "kernels/stochastic_rounding.h"

namespace ingot::kernels {
namespace {

static_assert(cpu::AdamwProblem::kMost == kAdamwTensors);

constexpr const char *kAdamw = "ingot_adamw", *kMomentum = "ingot_momentum", *kApply = "ingot_apply_direction";

bool is_bf16(const at::Tensor& x) { return x.scalar_type() == at::kBFloat16; }
bool is_plain(const at::Tensor& x) { return x.scalar_type() == at::kFloat && x.is_contiguous(); }
bool is_moment(const at::Tensor& x) { return (x.scalar_type() == at::kFloat || is_bf16(x)) && x.is_contiguous(); }
// A kernel counts within chunks, so that a tensor may be of any size.
bool has_kernel(const at::Tensor& x, const char* symbol) { return runs_rows(x.device(), 0, symbol); }

bool is_its_master(const at::Tensor& value, const at::Tensor& master) { return value.const_data_ptr() == master.const_data_ptr(); }
// Where the bf16 copy goes, or undefined.
at::Tensor narrow_of(const at::Tensor& value) { return is_bf16(value) ? value : at::Tensor(); }
bool takes_value(const at::Tensor& value, const at::Tensor& master) {
  return is_bf16(value) ? value.is_contiguous() : is_its_master(value, master);
}
void publish(const at::Tensor& master, const at::Tensor& value) {
  if (!is_its_master(value, master)) value.copy_(master);
}

// by_kernel(as many as a problem has at most).
template <class Problem, class Tensors, class ByKernel>
void in_problems(const std::vector<const Tensors*>& all, const ByKernel& by_kernel) {
  const auto count = static_cast<int64_t>(all.size());
  for (int64_t from = 0; from < count; from += Problem::kMost)
    by_kernel(std::vector<const Tensors*>(all.begin() + from, all.begin() + std::min<int64_t>(from + Problem::kMost, count)));
}

// The next tensor of a problem, without addresses.
template <class Problem>
typename Problem::Tensor& add_to(Problem& p, const at::Tensor& x) {
  auto& next = p.of[p.tensors++];
  next.elements = x.numel();
  next.first_chunk = p.rows;
  p.rows += (x.numel() + Problem::kChunk - 1) / Problem::kChunk;
  return next;
}

// One member of each.
template <class Tensors>
void append(TensorList& list, const std::vector<const Tensors*>& some, at::Tensor Tensors::*member) {
  for (const auto* one : some) list.push_back(one->*member);
}
template <class Tensors>
void append_narrow(TensorList& list, const std::vector<const Tensors*>& some) {
  for (const auto* one : some) list.push_back(narrow_of(one->value));
}

struct Corrections {
  double first, second;
  explicit Corrections(const AdamwStep& s)
      : first(1 - std::pow(s.beta1, static_cast<double>(s.step))), second(1 - std::pow(s.beta2, static_cast<double>(s.step))) {}
};

void adamw_by_kernel(const std::vector<const AdamwTensors*>& some, const AdamwStep& s) {
  const Corrections correction(s);
  cpu::AdamwProblem p{};
  const auto narrow = [](double x) { return static_cast<float>(x); };
  p.beta1 = narrow(s.beta1), p.rest1 = narrow(1 - s.beta1), p.beta2 = narrow(s.beta2), p.rest2 = narrow(1 - s.beta2);
  p.eps = narrow(s.eps), p.gradient_scale = narrow(s.gradient_scale), p.inverse2 = narrow(1 / correction.second);
  for (const auto* one : some) {
    auto& t = add_to(p, one->master);
    t.shrink = narrow(1 - one->lr * one->weight_decay), t.step = narrow(one->lr / correction.first);
    t.rounding_key = one->rounding_key, t.has_bf16_moments = is_bf16(one->first);
  }
  RowTensors tensors;
  for (const auto member : {&AdamwTensors::master, &AdamwTensors::grad, &AdamwTensors::first, &AdamwTensors::second})
    append(tensors.in, some, member);
  for (const auto member : {&AdamwTensors::master, &AdamwTensors::first, &AdamwTensors::second}) append(tensors.out, some, member);
  append_narrow(tensors.out, some);
  const auto bind = [](cpu::AdamwProblem& p, const RowTensors& t) {
    const auto n = static_cast<size_t>(p.tensors);
    for (size_t i = 0; i < n; ++i) {
      p.of[i].master = numbers(t.in[i]), p.of[i].grad = numbers(t.in[n + i]);
      p.of[i].first = address(t.in[2 * n + i]), p.of[i].second = address(t.in[3 * n + i]);
      p.of[i].narrow = static_cast<uint16_t*>(address(t.out[3 * n + i]));
    }
  };
  run_rows(RowCall<cpu::AdamwProblem>{"adamw", kAdamw, tensors, p, bind, /*grain=*/1}, cpu::adamw);
}

void adamw_by_operators(const AdamwTensors& t, const AdamwStep& s) {
  if (is_bf16(t.first)) {
    auto fp32 = t;
    fp32.first = t.first.to(at::kFloat), fp32.second = t.second.to(at::kFloat);
    adamw_by_operators(fp32, s);
    t.first.copy_(round_stochastically(fp32.first, t.rounding_key));
    t.second.copy_(round_stochastically(fp32.second, ~t.rounding_key));
    return;
  }
  // A GPU for which there are no kernels of ours (libingot_cuda.so) has torch's, which allocates nothing.
  if (device::is_gpu(t.master) && !device::is_virtual(t.master.device()) && is_plain(t.master) && is_plain(t.grad)) {
    const auto number = [&](double value) { return at::full({}, value, t.master.options()); };
    std::optional<at::Tensor> grad_scale;  // what it divides by
    if (s.gradient_scale != 1) grad_scale = number(1 / s.gradient_scale);
    at::_fused_adamw_({t.master}, {t.grad}, {t.first}, {t.second}, {}, {number(static_cast<double>(s.step))}, t.lr, s.beta1, s.beta2,
                      t.weight_decay, s.eps, /*amsgrad=*/false, /*maximize=*/false, grad_scale, {});
    return publish(t.master, t.value);
  }
  const Corrections correction(s);
  const auto g = s.gradient_scale == 1 ? t.grad : t.grad * s.gradient_scale;
  if (t.weight_decay > 0) t.master.mul_(1 - t.lr * t.weight_decay);
  t.first.mul_(s.beta1).add_(g, 1 - s.beta1);
  t.second.mul_(s.beta2).addcmul_(g, g, 1 - s.beta2);
  t.master.addcdiv_(t.first, (t.second / correction.second).sqrt_().add_(s.eps), -t.lr / correction.first);
  publish(t.master, t.value);
}

at::Tensor momentum_by_operators(const MomentumTensors& t, const MomentumStep& s) {
  if (is_bf16(t.momentum)) {
    const auto fp32 = t.momentum.to(at::kFloat);
    auto direction = momentum_by_operators({fp32, t.grad}, s);
    t.momentum.copy_(round_stochastically(fp32, t.rounding_key));
    return direction;
  }
  t.momentum.mul_(s.mu).add_(t.grad, s.gradient_scale);
  return s.nesterov ? (t.grad * s.gradient_scale).add_(t.momentum, s.mu) : t.momentum.clone();
}

// A momentum and where its direction goes.
struct Directed {
  MomentumTensors of;
  at::Tensor direction;
};

void momentum_by_kernel(const std::vector<const Directed*>& some, const MomentumStep& s) {
  cpu::MomentumProblem p{};
  p.mu = static_cast<float>(s.mu), p.gradient_scale = static_cast<float>(s.gradient_scale), p.nesterov = s.nesterov;
  RowTensors tensors;
  for (const auto* one : some) {
    auto& t = add_to(p, one->of.momentum);
    t.rounding_key = one->of.rounding_key, t.is_bf16 = is_bf16(one->of.momentum);
    tensors.in.push_back(one->of.momentum);
  }
  tensors.out = tensors.in;
  for (const auto* one : some) tensors.in.push_back(one->of.grad), tensors.out.push_back(one->direction);
  const auto bind = [](cpu::MomentumProblem& p, const RowTensors& t) {
    const auto n = static_cast<size_t>(p.tensors);
    for (size_t i = 0; i < n; ++i)
      p.of[i].momentum = address(t.in[i]), p.of[i].grad = numbers(t.in[n + i]), p.of[i].direction = numbers(t.out[n + i]);
  };
  run_rows(RowCall<cpu::MomentumProblem>{"momentum", kMomentum, tensors, p, bind, /*grain=*/1}, cpu::momentum);
}

void apply_by_kernel(const std::vector<const DirectedTensors*>& some) {
  cpu::ApplyProblem p{};
  for (const auto* one : some) {
    auto& t = add_to(p, one->master);
    t.keep = static_cast<float>(one->keep), t.step = static_cast<float>(one->step);
  }
  RowTensors tensors;
  append(tensors.in, some, &DirectedTensors::master);
  tensors.out = tensors.in;
  append(tensors.in, some, &DirectedTensors::direction);
  append_narrow(tensors.out, some);
  const auto bind = [](cpu::ApplyProblem& p, const RowTensors& t) {
    const auto n = static_cast<size_t>(p.tensors);
    for (size_t i = 0; i < n; ++i) {
      p.of[i].master = numbers(t.in[i]), p.of[i].direction = numbers(t.in[n + i]);
      p.of[i].narrow = static_cast<uint16_t*>(address(t.out[n + i]));
    }
  };
  run_rows(RowCall<cpu::ApplyProblem>{"apply_direction", kApply, tensors, p, bind, /*grain=*/1}, cpu::apply);
}

}  // namespace

void adamw_update(const std::vector<AdamwTensors>& all, const AdamwStep& s) {
  const auto takes = [](const AdamwTensors& t) {
    return has_kernel(t.master, kAdamw) && is_plain(t.master) && is_plain(t.grad) && is_moment(t.first) && is_moment(t.second) &&
           t.first.scalar_type() == t.second.scalar_type() && takes_value(t.value, t.master);
  };
  std::vector<const AdamwTensors*> some;
  for (const auto& t : all) takes(t) ? some.push_back(&t) : adamw_by_operators(t, s);
  in_problems<cpu::AdamwProblem>(some, [&](const auto& part) { adamw_by_kernel(part, s); });
}

std::vector<at::Tensor> momentum_update(const std::vector<MomentumTensors>& all, const MomentumStep& s) {
  const auto takes = [](const MomentumTensors& t) {
    return has_kernel(t.momentum, kMomentum) && is_moment(t.momentum) && is_plain(t.grad);
  };
  std::vector<at::Tensor> directions;
  std::vector<Directed> directed;
  for (const auto& t : all) {
    directions.push_back(takes(t) ? at::empty_like(t.grad) : momentum_by_operators(t, s));
    if (takes(t)) directed.push_back({t, directions.back()});
  }
  std::vector<const Directed*> some;
  for (const auto& one : directed) some.push_back(&one);
  in_problems<cpu::MomentumProblem>(some, [&](const auto& part) { momentum_by_kernel(part, s); });
  return directions;
}

void apply_directions(const std::vector<DirectedTensors>& all) {
  const auto takes = [](const DirectedTensors& t) {
    return has_kernel(t.master, kApply) && is_plain(t.master) && is_plain(t.direction) && takes_value(t.value, t.master);
  };
  std::vector<const DirectedTensors*> some;
  for (const auto& t : all) {
    if (takes(t)) {
      some.push_back(&t);
      continue;
    }
    t.master.mul_(t.keep).sub_(t.direction.to(t.master.scalar_type()), t.step);
    publish(t.master, t.value);
  }
  in_problems<cpu::ApplyProblem>(some, apply_by_kernel);
}

}  // namespace ingot::kernels
