#include "layers/experts.h"

#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/matmul.h"
#include "layers/autograd.h"

namespace ingot::layers {
namespace {

// Slots sorted by expert (stable, so the order within an expert is the tokens'), skipped slots last.
struct Dispatch {
  at::Tensor slots;             // int64 [routed], slots in expert order
  std::vector<int64_t> counts;  // per expert
};

Dispatch sort_by_expert(const at::Tensor& choice, int64_t experts) {
  const auto order = choice.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const auto counts = choice.bincount({}, experts + 1).cpu();
  Dispatch dispatch;
  int64_t routed = 0;
  for (int64_t e = 0; e < experts; ++e) {
    dispatch.counts.push_back(counts[e].item<int64_t>());
    routed += dispatch.counts.back();
  }
  dispatch.slots = order.narrow(0, 0, routed);
  return dispatch;
}

struct ExpertsFunction : Function<ExpertsFunction> {
  static Variable forward(AutogradContext* context, const Variable& x, const Variable& weight, const Variable& gate_up_value,
                          const Variable& down_value, const at::Tensor& choice, Parameter* gate_up, Parameter* down, int64_t top_k) {
    const auto dtype = gate_up_value.scalar_type();
    const auto dispatch = sort_by_expert(choice, gate_up_value.size(0));
    const auto tokens = top_k == 1 ? dispatch.slots : dispatch.slots.div(top_k, "floor");
    const auto rows = x.index_select(0, tokens).to(dtype);  // [routed, hidden]
    const auto slot_weight = weight.index_select(0, dispatch.slots);
    auto pre = at::empty({rows.size(0), gate_up_value.size(1)}, rows.options());
    auto routed = at::empty({rows.size(0), x.size(1)}, rows.options());
    int64_t from = 0;
    for (int64_t e = 0; e < gate_up_value.size(0); ++e) {
      const int64_t count = dispatch.counts[static_cast<size_t>(e)];
      if (count == 0) continue;
      const auto part = pre.narrow(0, from, count);
      kernels::matmul_into(part, rows.narrow(0, from, count), gate_up_value[e].t(), true);
      const auto activated = kernels::swiglu_forward(part, slot_weight.narrow(0, from, count));
      kernels::matmul_into(routed.narrow(0, from, count), activated, down_value[e].t(), true);
      from += count;
    }
    auto out = at::zeros({x.size(0), x.size(1)}, x.options());
    top_k == 1 ? out.index_copy_(0, tokens, routed.to(x.scalar_type())) : out.index_add_(0, tokens, routed.to(x.scalar_type()));
    remember(context, "gate_up", gate_up);
    remember(context, "down", down);
    context->saved_data["counts"] = dispatch.counts;
    context->saved_data["slots"] = weight.size(0);
    context->save_for_backward({x, slot_weight, pre, dispatch.slots, tokens});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    auto* gate_up = remembered<Parameter>(context, "gate_up");
    auto* down = remembered<Parameter>(context, "down");
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &slot_weight = saved[1], &pre = saved[2], &slots = saved[3], &tokens = saved[4];
    const auto counts = context->saved_data["counts"].toIntVector();
    const auto grad_rows = grads[0].index_select(0, tokens).to(pre.scalar_type());
    const auto rows = x.index_select(0, tokens).to(pre.scalar_type());
    auto grad_x_rows = at::empty_like(rows);
    auto grad_weight = at::zeros({context->saved_data["slots"].toInt()}, slot_weight.options());
    bool overwrite_up = false, overwrite_down = false;
    auto& buffer_up = gate_up->gradient_buffer(overwrite_up);
    auto& buffer_down = down->gradient_buffer(overwrite_down);
    int64_t from = 0;
    for (size_t e = 0; e < counts.size(); ++e) {
      const int64_t count = counts[e];
      auto grad_up = buffer_up[static_cast<int64_t>(e)], grad_down = buffer_down[static_cast<int64_t>(e)];
      if (count == 0) {
        if (overwrite_up) grad_up.zero_();
        if (overwrite_down) grad_down.zero_();
        continue;
      }
      const auto part = pre.narrow(0, from, count), grad_part = grad_rows.narrow(0, from, count), x_part = rows.narrow(0, from, count);
      const auto part_weight = slot_weight.narrow(0, from, count);
      const auto grad_activated = kernels::matmul(grad_part, down->value[static_cast<int64_t>(e)], pre.scalar_type());
      kernels::matmul_into(grad_down, grad_part.t(), kernels::swiglu_forward(part, part_weight), overwrite_down);
      const auto [grad_pre, grad_part_weight] = kernels::swiglu_backward(grad_activated, part, part_weight);
      grad_weight.index_copy_(0, slots.narrow(0, from, count), grad_part_weight);
      kernels::matmul_into(grad_x_rows.narrow(0, from, count), grad_pre, gate_up->value[static_cast<int64_t>(e)], true);
      kernels::matmul_into(grad_up, grad_pre.t(), x_part, overwrite_up);
      from += count;
    }
    auto grad_x = at::zeros_like(x);
    grad_x.index_add_(0, tokens, grad_x_rows.to(x.scalar_type()));
    return {grad_x, grad_weight, Variable(), Variable(), Variable(), Variable(), Variable(), Variable()};
  }
};

}  // namespace

at::Tensor experts(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& weight, Parameter& gate_up, Parameter& down,
                   int64_t top_k, SkipOutput skip) {
  auto out = ExpertsFunction::apply(x, weight, gate_up.value, down.value, choice, &gate_up, &down, top_k);
  if (skip == SkipOutput::identity) {
    const auto skipped = choice.eq(gate_up.value.size(0)).to(weight.scalar_type());
    const auto share = (weight * skipped).view({-1, top_k}).sum(1, /*keepdim=*/true);
    out = out + (share * x).to(out.scalar_type());
  }
  return out;
}

}  // namespace ingot::layers
