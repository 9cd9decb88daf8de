// rows: tokens; width: of the FFN, half of gate_up's.
#include "kernels/operators/helpers.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels {
namespace {

template <Gate gate>
OperatorCall make(const OperatorSizes& s) {
  return {.inputs = {s.leaf({s.rows, 2 * s.width})},
          .forward = [](const TensorList& in) -> TensorList { return {glu(in[0], gate)}; },
          .reference = [](const TensorList& in) -> TensorList { return {reference::glu(in[0], gate)}; }};
}

OperatorCost cost(const OperatorSizes& s) {
  const int64_t out = s.rows * s.width * bytes_of(s.dtype);
  return {.forward = {.read_bytes = 2 * out, .written_bytes = out},
          .backward = {.read_bytes = 3 * out, .written_bytes = 2 * out},
          .saved_bytes = 2 * out};
}

template <Gate gate>
Operator unit(std::string_view name, std::string_view backward_name) {
  return token_operator({.name = name,
                         .backward_name = backward_name,
                         .kind = WorkKind::activations,
                         .forward_size = size_of_output<0>,
                         .backward_size = size_of_input<0>,
                         .make = make<gate>,
                         .cost = cost,
                         .checked = {{18, 3}, {9, 8}, {45, 21}},
                         .fused_on = {device::Target::cpu, device::Target::gpu}});
}

}  // namespace

std::vector<Operator> activation_operators() {
  return {unit<Gate::silu>("swiglu", "swiglu.backward"), unit<Gate::gelu_tanh>("geglu", "geglu.backward"),
          unit<Gate::clamped>("clamped_swiglu", "clamped_swiglu.backward")};
}

}  // namespace ingot::kernels
