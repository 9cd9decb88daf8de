// The recurrence with its variants' kernels: a gate per head, a gate per channel, the delta rule, both (KDA). rows: tokens of one sequence
// times four heads; width: of a head's keys and values.
#include "layers/linear_attention.h"

#include "kernels/operators/helpers.h"
#include "layers/operators/helpers.h"

namespace ingot::layers {
namespace {

constexpr int64_t kHeads = 4;

enum class Mixing { gate_per_head, gate_per_channel, delta, kda };

constexpr bool is_by_channel(Mixing mixing) { return mixing == Mixing::gate_per_channel || mixing == Mixing::kda; }
constexpr bool has_delta(Mixing mixing) { return mixing == Mixing::delta || mixing == Mixing::kda; }

template <Mixing mixing>
OperatorCall make(const OperatorSizes& s) {
  const int64_t tokens = s.rows / kHeads;
  const auto operand = [&] { return s.leaf({1, tokens, kHeads, s.width}); };
  const auto gate = [&](const at::Tensor& x) { return at::log_sigmoid(x.detach()).set_requires_grad(true); };
  OperatorCall call;
  call.inputs = {operand(), operand(), operand()};
  if (is_by_channel(mixing)) call.inputs.push_back(gate(s.leaf({1, tokens, kHeads, s.width}, s.wide())));
  else call.inputs.push_back(gate(s.leaf({1, tokens, kHeads}, s.wide())));
  if (has_delta(mixing)) {
    // As models have it: keys of length 1, so that the state stays bounded.
    const auto normed = [](const at::Tensor& x) { return (x / x.norm(2, -1, true)).detach().set_requires_grad(true); };
    call.inputs[0] = normed(call.inputs[0]);
    call.inputs[1] = normed(call.inputs[1]);
    call.inputs.push_back(at::sigmoid(s.leaf({1, tokens, kHeads}, s.wide()).detach()).set_requires_grad(true));
  }
  const auto inputs_of = [](const TensorList& in) {
    return kernels::LinearAttentionInputs{in[0], in[1], in[2], in[3], has_delta(mixing) ? in[4] : at::Tensor(), {}};
  };
  const auto sequences = std::make_shared<Sequences>(1, tokens, at::Tensor(), 0, s.device);
  call.forward = [=](const TensorList& in) -> TensorList { return {linear_attention(inputs_of(in), *sequences, {})}; };
  call.reference = [=](const TensorList& in) -> TensorList {
    return {kernels::reference::linear_attention_recurrence(inputs_of(in), {}).out};
  };
  return call;
}

template <Mixing mixing>
OperatorCost cost(const OperatorSizes& s) {
  const bool by_channel = is_by_channel(mixing), is_delta = has_delta(mixing);
  const int64_t x = s.rows * s.width * kernels::bytes_of(s.dtype), gates = s.rows * (by_channel ? s.width : 1) * 4;
  const int64_t beta = is_delta ? s.rows * 4 : 0, state = kHeads * s.width * s.width * 4;
  const int64_t states = state * kernels::linear_attention_segments(s.rows / kHeads, by_channel);
  const double flops = 2.0 * static_cast<double>(s.rows) * static_cast<double>(s.width * s.width) * (is_delta ? 3 : 2);
  // Work areas are of each thread's.
  return {.forward = {flops, 3 * x + gates + beta, x + state + states, OperatorCost::kVaries},
          .backward = {2 * flops, 4 * x + gates + beta + states, 3 * x + gates + beta + state, OperatorCost::kVaries},
          .saved_bytes = 3 * x + gates + beta + states};
}

template <Mixing mixing>
Operator recurrence(std::string_view name, std::string_view backward_name) {
  return {.name = name,
          .kind = WorkKind::linear_attention,
          .traced = {{name, false, kernels::size_of_input<0>}, {backward_name, true, kernels::size_of_input<1>}},
          .fused_on = {device::Target::cpu},
          .make = make<mixing>,
          .cost = cost<mixing>,
          .measured = [](bool quick) { return kernels::grid(kernels::token_rows(quick, kHeads), kernels::doubling(32, 128, quick)); },
          .checked = {{4 * 70, 8}, {4 * 33, 24}},
          .tolerance = {1e-4, 4e-2}};
}

}  // namespace

std::vector<Operator> linear_attention_operators() {
  auto by_head = recurrence<Mixing::gate_per_head>("linear_attention", "linear_attention.backward");
  // Where a sequence is spread over ranks.
  for (const auto* name : {"linear_attention_state", "linear_attention_state_gradient", "linear_attention_of_state"})
    by_head.traced.push_back({name});
  return {std::move(by_head), recurrence<Mixing::gate_per_channel>("linear_attention_channels", "linear_attention_channels.backward"),
          recurrence<Mixing::delta>("linear_attention_delta", "linear_attention_delta.backward"),
          recurrence<Mixing::kda>("linear_attention_kda", "linear_attention_kda.backward")};
}

}  // namespace ingot::layers
