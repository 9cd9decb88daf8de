#include "layers/experts.h"

#include <utility>

#include "base/work_scope.h"
#include "device/device.h"
#include "device/virtual_device.h"
#include "kernels/activation.h"
#include "kernels/gemm_tuning.h"
#include "kernels/grouped_operand.h"
#include "kernels/operand.h"
#include "kernels/routing.h"
#include "layers/autograd.h"
#include "layers/deferred.h"

namespace ingot::layers {
namespace {

using kernels::OperandKind, kernels::operand_of;

// Slots sorted by expert (stable, so the order within an expert is the tokens'), skipped slots last.
struct Dispatch {
  at::Tensor slots;             // int64 [routed], slots in expert order
  std::vector<int64_t> counts;  // per expert
};

Dispatch sort_by_expert(const at::Tensor& choice, int64_t experts) {
  const auto order = choice.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  auto counts = kernels::class_counts(choice, experts + 1).cpu();
  // Without data every expert is sent as much, and none is skipped.
  if (device::is_counting(choice)) {
    counts.fill_(choice.numel() / experts).narrow(0, 0, choice.numel() % experts).add_(1);
    counts[experts].zero_();
  }
  Dispatch dispatch;
  int64_t routed = 0;
  for (int64_t e = 0; e < experts; ++e) {
    dispatch.counts.push_back(counts[e].item<int64_t>());
    routed += dispatch.counts.back();
  }
  dispatch.slots = order.narrow(0, 0, routed);
  return dispatch;
}

/// body(expert, its first row, its rows) for each expert that has rows.
template <class Body>
void for_each_expert(const std::vector<int64_t>& counts, const Body& body) {
  int64_t from = 0;
  for (size_t e = 0; e < counts.size(); from += counts[e++])
    if (counts[e] > 0) body(static_cast<int64_t>(e), from, counts[e]);
}

// Where operands are rounded there are copies of them, of one expert at a time.
//
// out[rows of expert e] = x[the same rows] weights[e]ᵀ, or times weights[e] where `summed`, the dimension of it that is summed over, is 0.
void multiply_by_experts(const at::Tensor& out, const at::Tensor& x, const at::Tensor& weights, const std::vector<int64_t>& counts,
                         std::optional<kernels::Quantization> quantization, OperandKind kind, int64_t summed) {
  std::vector<kernels::MatmulOfAnyRows> all;
  for_each_expert(counts, [&](int64_t e, int64_t from, int64_t count) {
    all.push_back({out.narrow(0, from, count), operand_of(x.narrow(0, from, count), quantization, kind, 1),
                   operand_of(weights[e], quantization, OperandKind::weight, summed)});
    if (quantization) kernels::matmuls_of_any_rows_into(std::exchange(all, {}));
  });
  kernels::matmuls_of_any_rows_into(all);
}

// out[e] = (overwrite ? 0 : out[e]) + gradᵀ x over the rows of expert e.
void add_gradients(const at::Tensor& out, const at::Tensor& grad, const at::Tensor& x, const std::vector<int64_t>& counts,
                   std::optional<kernels::Quantization> quantization, bool overwrite) {
  std::vector<kernels::MatmulOfAnyRows> all;
  for_each_expert(counts, [&](int64_t e, int64_t from, int64_t count) {
    all.push_back({out[e], operand_of(grad.narrow(0, from, count), quantization, OperandKind::expert_gradient, 0),
                   operand_of(x.narrow(0, from, count), quantization, OperandKind::activation, 0), overwrite});
    if (quantization) kernels::matmuls_of_any_rows_into(std::exchange(all, {}));
  });
  kernels::matmuls_of_any_rows_into(all);
}

// The same as ExpertsFunction below for GPUs and experts that are all here: the device alone knows how many rows an expert has. Skipped
// slots are routed, too, to the last expert and with a weight of 0, so that the host knows every shape.
struct GroupedExpertsFunction : Function<GroupedExpertsFunction, base::shares(WorkKind::routing)> {
  struct Kept {
    Parameter *gate_up, *down;
    DeferredGradients* deferred;
    int64_t top_k;
    kernels::Gate gate;
  };
  static at::Tensor forward(Context& context, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate_up_value,
                            const at::Tensor& down_value, const at::Tensor& choice, const ExpertWeights& weights, int64_t top_k) {
    auto *gate_up = &weights.gate_up, *down = &weights.down;
    const auto sorted = kernels::sort_slots(choice, gate_up->shape[0]);
    const auto rows = kernels::gather_rows(x, sorted.order, top_k, gate_up_value.scalar_type());  // [slots, hidden]
    const auto slot_weight = weight.index_select(0, sorted.order) * sorted.is_routed;
    const kernels::GroupedGemms gemms(sorted, gate_up->quantization);
    const auto pre = gemms.forward(rows, gate_up_value);
    const auto routed = gemms.forward(kernels::glu_forward(pre, slot_weight, weights.gate), down_value);
    context.keep(Kept{gate_up, down, DeferredGradients::current(), top_k, weights.gate});
    context.save({x, slot_weight, pre, sorted.order, sorted.ends, sorted.inverse, sorted.is_routed});
    return kernels::sum_slots(routed, sorted.inverse, top_k, x.scalar_type());
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto [gate_up, down, deferred, top_k, gate] = context.kept<Kept>();
    const auto saved = context.saved();
    const at::Tensor x = saved[0], slot_weight = saved[1], pre = saved[2], order = saved[3], inverse = saved[5], is_routed = saved[6];
    const kernels::GroupedGemms gemms({.order = order, .ends = saved[4], .inverse = inverse, .is_routed = is_routed},
                                      gate_up->quantization);
    const auto grad_rows = kernels::gather_rows(grads[0], order, top_k, pre.scalar_type()),
               rows = kernels::gather_rows(x, order, top_k, pre.scalar_type());
    const auto [grad_pre_rows, grad_slot_weight] = kernels::glu_backward(gemms.grad_input(grad_rows, down->value), pre, slot_weight, gate);
    const auto grad_pre = grad_pre_rows;
    const auto grad_x_rows = gemms.grad_input(grad_pre, gate_up->value);
    if (gate_up->is_trained())
      DeferredGradients::run_or_defer(deferred, [=, gate = gate] {
        const auto add = [&](Parameter& parameter, const at::Tensor& grad, const at::Tensor& input) {
          bool overwrite = false;
          auto& buffer = parameter.gradient_buffer(overwrite);
          gemms.grad_weight_into(buffer, grad, input, overwrite);
        };
        add(*down, grad_rows, kernels::glu_forward(pre, slot_weight, gate));
        add(*gate_up, grad_pre, rows);
      });
    return {kernels::sum_slots(grad_x_rows, inverse, top_k, x.scalar_type()), (grad_slot_weight * is_routed).index_select(0, inverse)};
  }
};

struct ExpertsFunction : Function<ExpertsFunction, base::shares(WorkKind::routing)> {
  struct Kept {
    Parameter *gate_up, *down;
    DeferredGradients* deferred;
    std::vector<int64_t> counts;
    int64_t slots;
    std::shared_ptr<const ExpertExchange> exchange;  // null where the experts are all here
    kernels::Gate gate;
  };
  // The biases may be undefined.
  static at::Tensor forward(Context& context, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate_up_value,
                            const at::Tensor& down_value, const at::Tensor& choice, const at::Tensor& gate_up_bias,
                            const at::Tensor& down_bias, const ExpertWeights& weights, int64_t top_k, const StartExpertExchange& start) {
    auto *gate_up = &weights.gate_up, *down = &weights.down;
    const auto dtype = gate_up_value.scalar_type();
    const auto dispatch = sort_by_expert(choice, gate_up->shape[0]);
    const auto tokens = top_k == 1 ? dispatch.slots : dispatch.slots.div(top_k, "floor");
    auto rows = x.index_select(0, tokens).to(dtype);  // [routed, hidden]
    auto slot_weight = weight.index_select(0, dispatch.slots);
    auto counts = dispatch.counts;
    std::shared_ptr<const ExpertExchange> exchange;
    if (start) {
      exchange = start(counts, x.device());
      rows = exchange->dispatch(rows);
      slot_weight = exchange->dispatch(slot_weight);
      counts = exchange->counts();
    }
    auto pre = at::empty({rows.size(0), gate_up_value.size(1)}, rows.options());
    auto routed = at::empty({rows.size(0), x.size(1)}, rows.options());
    const auto quantization = gate_up->quantization;
    const kernels::UntunedGemms rows_change_each_time;
    multiply_by_experts(pre, rows, gate_up_value, counts, quantization, OperandKind::activation, 1);
    if (gate_up_bias.defined())
      for_each_expert(counts, [&](int64_t e, int64_t from, int64_t count) { pre.narrow(0, from, count).add_(gate_up_bias[e]); });
    multiply_by_experts(routed, kernels::glu_forward(pre, slot_weight, weights.gate), down_value, counts, quantization,
                        OperandKind::activation, 1);
    if (down_bias.defined())
      for_each_expert(counts, [&](int64_t e, int64_t from, int64_t count) {
        routed.narrow(0, from, count).add_(slot_weight.narrow(0, from, count).unsqueeze(1) * down_bias[e]);
      });
    if (exchange) routed = exchange->combine(routed);
    auto out = at::zeros({x.size(0), x.size(1)}, x.options());
    top_k == 1 ? out.index_copy_(0, tokens, routed.to(x.scalar_type())) : out.index_add_(0, tokens, routed.to(x.scalar_type()));
    context.keep(Kept{gate_up, down, DeferredGradients::current(), counts, weight.size(0), exchange, weights.gate});
    // Rows that came from elsewhere are kept; those of this rank are picked from x again.
    context.save({x, slot_weight, pre, dispatch.slots, tokens, exchange ? rows : at::Tensor(), gate_up_bias, down_bias});
    return out;
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto [gate_up, down, deferred, counts, all_slots, exchange, gate] = context.kept<Kept>();
    const auto saved = context.saved();
    const at::Tensor x = saved[0], slot_weight = saved[1], pre = saved[2], slots = saved[3], tokens = saved[4], down_bias = saved[7];
    at::Tensor grad_gate_up_bias, grad_down_bias;
    if (saved[6].defined()) grad_gate_up_bias = at::zeros_like(saved[6]), grad_down_bias = at::zeros_like(down_bias);
    const auto quantization = gate_up->quantization;
    auto grad_rows = grads[0].index_select(0, tokens).to(pre.scalar_type());
    if (exchange) grad_rows = exchange->dispatch(grad_rows);
    const auto rows = exchange ? saved[5] : x.index_select(0, tokens).to(pre.scalar_type());
    auto grad_x_rows = at::empty_like(rows);
    auto grad_slot_weight = at::empty({rows.size(0)}, slot_weight.options());
    auto grad_pre = at::empty({rows.size(0), pre.size(1)}, pre.options());
    const kernels::UntunedGemms rows_change_each_time;
    const auto grad_activated = at::empty({rows.size(0), down->value.size(2)}, pre.options());
    multiply_by_experts(grad_activated, grad_rows, down->value, counts, quantization, OperandKind::expert_gradient, 0);
    kernels::glu_backward_into(grad_pre, grad_slot_weight, grad_activated, pre, slot_weight, gate);
    if (grad_down_bias.defined())
      for_each_expert(counts, [&](int64_t e, int64_t from, int64_t count) {
        const auto grad_out = grad_rows.narrow(0, from, count).to(down_bias.scalar_type()),
                   part_weight = slot_weight.narrow(0, from, count).to(down_bias.scalar_type());
        grad_slot_weight.narrow(0, from, count).add_(at::matmul(grad_out, down_bias[e]));
        grad_down_bias[e] = at::matmul(grad_out.t(), part_weight);
        grad_gate_up_bias[e] = grad_pre.narrow(0, from, count).sum(0, /*keepdim=*/false, grad_gate_up_bias.scalar_type());
      });
    multiply_by_experts(grad_x_rows, grad_pre, gate_up->value, counts, quantization, OperandKind::expert_gradient, 0);
    if (gate_up->is_trained())
      DeferredGradients::run_or_defer(deferred, [=, gate = gate] {
        const kernels::UntunedGemms rows_change_each_time_here_too;
        bool overwrite_up = false, overwrite_down = false;
        auto& buffer_up = gate_up->gradient_buffer(overwrite_up);
        auto& buffer_down = down->gradient_buffer(overwrite_down);
        for (size_t e = 0; e < counts.size(); ++e) {
          if (counts[e] > 0) continue;
          if (overwrite_up) buffer_up[static_cast<int64_t>(e)].zero_();
          if (overwrite_down) buffer_down[static_cast<int64_t>(e)].zero_();
        }
        add_gradients(buffer_down, grad_rows, kernels::glu_forward(pre, slot_weight, gate), counts, quantization, overwrite_down);
        add_gradients(buffer_up, grad_pre, rows, counts, quantization, overwrite_up);
      });
    if (exchange) {
      grad_x_rows = exchange->combine(grad_x_rows);
      grad_slot_weight = exchange->combine(grad_slot_weight);
    }
    auto grad_weight = at::zeros({all_slots}, slot_weight.options());
    grad_weight.index_copy_(0, slots, grad_slot_weight);
    auto grad_x = at::zeros_like(x);
    grad_x.index_add_(0, tokens, grad_x_rows.to(x.scalar_type()));
    return {grad_x, grad_weight, at::Tensor(), at::Tensor(), at::Tensor(), grad_gate_up_bias, grad_down_bias};
  }
};

}  // namespace

at::Tensor experts(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& weight, const ExpertWeights& weights, int64_t top_k,
                   SkipOutput skip, const StartExpertExchange& start) {
  const base::WorkScope scope("experts", base::shares(base::WorkKind::routing));
  const auto &gate_up = weights.gate_up, &down = weights.down;
  const auto takes = [&](const Parameter& of) { return kernels::GroupedGemms::take(of.value, choice.numel(), gate_up.quantization); };
  const auto value_of = [](const Parameter* bias) { return bias ? bias->value : at::Tensor(); };
  const bool is_grouped = !start && !weights.down_bias && takes(gate_up) && takes(down);
  auto out = is_grouped ? GroupedExpertsFunction::apply(x, weight, gate_up.value, down.value, choice, weights, top_k)
                        : ExpertsFunction::apply(x, weight, gate_up.value, down.value, choice, value_of(weights.gate_up_bias),
                                                 value_of(weights.down_bias), weights, top_k, start);
  if (skip == SkipOutput::identity) {
    const auto skipped = choice.eq(gate_up.shape[0]).to(weight.scalar_type());
    const auto share = (weight * skipped).view({-1, top_k}).sum(1, /*keepdim=*/true);
    out = out + (share * x).to(out.scalar_type());
  }
  return out;
}

}  // namespace ingot::layers
