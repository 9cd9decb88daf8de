// rows: tokens; width: of the FFN, half of gate_up's.
#include "kernels/operators/helpers.h"
#include "kernels/operators/lists.h"
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

std::vector<Operator> swiglu_operators() {
  return {{.name = "swiglu",
           .kind = WorkKind::activations,
           .traced = {{"swiglu", false, size_of_output<0>}, {"swiglu.backward", true, size_of_input<0>}},
           .fused_on = {device::Target::cpu},
           .make = make,
           .cost = cost,
           .measured = [](bool quick) { return grid(token_rows(quick), doubling(256, quick ? 1024 : 2048, quick)); },
           .checked = {{18, 3}, {9, 8}, {45, 21}}}};
}

}  // namespace ingot::kernels
