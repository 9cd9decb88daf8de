// rows: tokens; width: of the FFN, half of gate_up's.
#include "kernels/operators/helpers.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels {
namespace {

OperatorCall make(const OperatorSizes& s) {
  return {.inputs = {s.leaf({s.rows, 2 * s.width})},
          .forward = [](const TensorList& in) -> TensorList { return {swiglu(in[0])}; },
          .reference = [](const TensorList& in) -> TensorList { return {reference::swiglu(in[0])}; }};
}

OperatorCost cost(const OperatorSizes& s) {
  const int64_t out = s.rows * s.width * bytes_of(s.dtype);
  return {.forward = {.read_bytes = 2 * out, .written_bytes = out},
          .backward = {.read_bytes = 3 * out, .written_bytes = 2 * out},
          .saved_bytes = 2 * out};
}

}  // namespace

std::vector<Operator> activation_operators() {
  return {token_operator({.name = "swiglu",
                          .backward_name = "swiglu.backward",
                          .kind = WorkKind::activations,
                          .forward_size = size_of_output<0>,
                          .backward_size = size_of_input<0>,
                          .make = make,
                          .cost = cost,
                          .checked = {{18, 3}, {9, 8}, {45, 21}},
                          .fused_on = {device::Target::cpu, device::Target::gpu}})};
}

}  // namespace ingot::kernels
