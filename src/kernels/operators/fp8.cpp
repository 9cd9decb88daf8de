// Rounding of activations to MXFP8. rows: tokens; width: elements that a GEMM sums over.
#include "kernels/operators/helpers.h"
#include "kernels/quantization.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels {
namespace {

OperatorCall make(const OperatorSizes& s) {
  return {.inputs = {s.normal({s.rows, s.width}).to(s.dtype)},
          .forward = [](const TensorList& in) -> TensorList { return {quantize(in[0], Quantization::mxfp8, OperandKind::activation, 1)}; },
          .reference = [](const TensorList& in) -> TensorList { return {reference::round_to_fp8(in[0], 1, 32, at::kFloat8_e4m3fn)}; }};
}

OperatorCost cost(const OperatorSizes& s) {
  const int64_t bytes = s.rows * s.width * bytes_of(s.dtype);
  return {.forward = {.read_bytes = bytes, .written_bytes = bytes}, .backward = {}};
}

}  // namespace

std::vector<Operator> fp8_operators() {
  return {{.name = "round_to_fp8",
           .kind = WorkKind::elementwise,
           .traced = {{"round_to_fp8", false, size_of_output<0>}, {"largest_magnitude"}},
           .fused_on = {device::Target::cpu, device::Target::gpu},
           .make = make,
           .cost = cost,
           .measured = [](bool quick) { return grid(token_rows(quick), doubling(256, quick ? 1024 : 2048, quick)); },
           .checked = {{18, 96}, {9, 8}, {45, 333}}}};
}

}  // namespace ingot::kernels
