// RMSNorm, the residual add, and both in one pass. rows: tokens; width: of the residual stream.
#include "kernels/norm.h"

#include "kernels/cpu/rows_norm.h"
#include "kernels/operators/helpers.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels {
namespace {

constexpr double kEps = 1e-5;

// What a call has besides the residual.
struct Parts {
  bool branch, scale, weight;
};

template <Parts parts>
OperatorCall make(const OperatorSizes& s) {
  OperatorCall call;
  call.inputs.push_back(s.leaf({1, s.rows, s.width}, s.wide()));
  if (parts.branch) call.inputs.push_back(s.leaf({1, s.rows, s.width}));
  for (int i = 0; i < (parts.scale ? 4 : 0) + (parts.weight ? 1 : 0); ++i) call.inputs.push_back(s.leaf({s.width}, s.wide()));
  const auto scale_of = [](const TensorList& in) { return parts.scale ? ResidualScale{in[2], in[3], in[4], in[5]} : ResidualScale{}; };
  call.forward = [=, dtype = s.dtype](const TensorList& in) -> TensorList {
    if (!parts.branch) return {rms_norm(in[0], in.back(), kEps, dtype)};
    if (!parts.weight) return {join_residual(in[0], in[1], scale_of(in))};
    const auto [joined, normed] = join_residual_and_norm(in[0], in[1], scale_of(in), in.back(), kEps, dtype);
    return {joined, normed};
  };
  call.reference = [=, dtype = s.dtype](const TensorList& in) -> TensorList {
    TensorList out;
    if (parts.branch) out.push_back(reference::join_residual(in[0], in[1], scale_of(in)));
    if (parts.weight) out.push_back(reference::rms_norm(parts.branch ? out[0] : in[0], in.back(), kEps, dtype));
    return out;
  };
  return call;
}

// The residual stream is fp32; branch and normed are of the compute dtype.
template <Parts parts>
OperatorCost cost(const OperatorSizes& s) {
  const int64_t stream = s.rows * s.width * 4, narrow = s.rows * s.width * bytes_of(s.dtype), vector = s.width * 4, inverse = s.rows * 4;
  const int64_t branch = parts.branch ? narrow : 0, joined = parts.branch ? stream : 0;
  const int64_t normed = parts.weight ? narrow : 0, weight = parts.weight ? vector : 0;
  OperatorCost cost;
  cost.forward = {.read_bytes = stream + branch + weight, .written_bytes = joined + normed + (parts.weight ? inverse : 0)};
  cost.backward = {.read_bytes = stream + branch + weight + joined + normed,
                   .written_bytes = stream + branch,
                   .scratch_bytes = row_sums_scratch(s.rows, cpu::kJoinNormSums * s.width)};
  cost.saved_bytes = stream + branch + (parts.scale ? 4 * vector : 0) + weight;
  if (parts.weight) cost.saved_bytes += joined + inverse;
  // The vectors' sums are gradients, or made for nothing.
  if (!parts.weight && !parts.scale) cost.backward.scratch_bytes += cpu::kJoinNormSums * vector;
  return cost;
}

template <Parts parts>
Operator norm(std::string_view name, std::string_view backward_name) {
  return {.name = name,
          .kind = WorkKind::norms,
          .traced = {{name, false, size_of_input<0>}, {backward_name, true, size_of_input<0>}},
          .fused_on = {device::Target::cpu, device::Target::gpu},
          .make = make<parts>,
          .cost = cost<parts>,
          .measured = [](bool quick) { return grid(token_rows(quick), doubling(256, quick ? 1024 : 2048, quick)); },
          .checked = {{70, 3}, {210, 5}, {33, 24}, {74, 45}, {19, 67}}};
}

}  // namespace

std::vector<Operator> norm_operators() {
  return {norm<Parts{false, false, true}>("rms_norm", "rms_norm.backward"),
          norm<Parts{true, false, true}>("join_norm", "join_norm.backward"),
          norm<Parts{true, true, true}>("scaled_join_norm", "scaled_join_norm.backward"),
          norm<Parts{true, false, false}>("join", "join.backward"), norm<Parts{true, true, false}>("scaled_join", "scaled_join.backward")};
}

}  // namespace ingot::kernels
