// The element-wise parts of linear attention, as layers/linear_attention.cpp writes them. rows: tokens; width: of all heads.
#include "kernels/operators/helpers.h"
#include "layers/operators/helpers.h"

namespace ingot::layers {
namespace {

OperatorCall make_gates(const OperatorSizes& s) {
  return {.inputs = {s.leaf({1, s.rows, s.width}), s.leaf({s.width}, s.wide())},
          .forward = [wide = s.wide()](const TensorList& in) -> TensorList { return {at::log_sigmoid(in[0].to(wide) + in[1]) / 16}; },
          .reference = {}};
}

OperatorCall make_output_gate(const OperatorSizes& s) {
  return {.inputs = {s.leaf({1, s.rows, s.width}), s.leaf({1, s.rows, s.width}), s.leaf({s.width}, s.wide())},
          .forward = [wide = s.wide(), dtype = s.dtype](const TensorList& in) -> TensorList {
            return {(in[0].to(wide) * in[2] * at::silu(in[1].to(wide))).to(dtype)};
          },
          .reference = {}};
}

Operator elementwise(std::string_view name, OperatorCall (*make)(const OperatorSizes&)) {
  return {
      .name = name,
      .kind = WorkKind::linear_attention,
      .make = make,
      .measured = [](bool quick) { return kernels::grid(kernels::token_rows(quick), kernels::doubling(256, quick ? 1024 : 2048, quick)); },
      .checked = {{70, 24}}};
}

}  // namespace

std::vector<Operator> gates_operators() { return {elementwise("gates", make_gates), elementwise("output_gate", make_output_gate)}; }

}  // namespace ingot::layers
