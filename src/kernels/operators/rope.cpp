// Splitting a packed projection into heads, of which q and k turn. rows: tokens; width: all heads of q, k and v together, of 64 channels,
// a quarter of them of k.
#include "kernels/operators/helpers.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels {
namespace {

constexpr int64_t kHeadDim = 64;

OperatorCall make(const OperatorSizes& s) {
  const int64_t all = s.width / kHeadDim, kv_heads = std::max<int64_t>(1, all / 4), heads = all - 2 * kv_heads;
  const auto angles = at::rand({1, s.rows, kHeadDim / 2}, at::TensorOptions().dtype(s.wide()).device(s.device));
  OperatorCall call;
  call.inputs = {s.leaf({1, s.rows, s.width}), angles.cos(), angles.sin()};
  const auto by = [=](auto&& kernel) {
    return [=](const TensorList& in) -> TensorList {
      const auto [q, k, v] = kernel(in[0], heads, kv_heads, kHeadDim, RotaryTable{in[1], in[2]});
      return {q, k, v};
    };
  };
  call.forward = by(split_and_rotate);
  call.reference = by(reference::split_and_rotate);
  return call;
}

OperatorCost cost(const OperatorSizes& s) {
  const int64_t packed = s.rows * s.width * bytes_of(s.dtype), table = s.rows * kHeadDim * 4;
  return {.forward = {.read_bytes = packed + table, .written_bytes = packed},
          .backward = {.read_bytes = packed + table, .written_bytes = packed},
          .saved_bytes = table};
}

}  // namespace

std::vector<Operator> rope_operators() {
  return {token_operator({.name = "split_and_rotate",
                          .backward_name = "split_and_rotate.backward",
                          .kind = WorkKind::attention,
                          .forward_size = size_of_input<0>,
                          .backward_size = size_of_output<0>,
                          .make = make,
                          .cost = cost,
                          .checked = {{11, 256}, {37, 512}},
                          .fused_on = {device::Target::cpu, device::Target::gpu}})};
}

}  // namespace ingot::kernels
