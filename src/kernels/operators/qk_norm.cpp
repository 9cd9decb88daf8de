// Norms of each query and key head before RoPE. rows: tokens; width: all heads of q, k and v together, of 64 channels, a quarter of them of
// k.
#include "kernels/qk_norm.h"

#include "kernels/operators/helpers.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels {
namespace {

constexpr int64_t kHeadDim = 64;
constexpr double kEps = 1e-6;

struct Heads {
  int64_t q, kv;
};
Heads heads_of(const OperatorSizes& s) {
  const int64_t all = s.width / kHeadDim, kv = std::max<int64_t>(1, all / 4);
  return {all - 2 * kv, kv};
}

OperatorCall make(const OperatorSizes& s) {
  const auto heads = heads_of(s);
  const auto angles = at::rand({1, s.rows, kHeadDim / 2}, at::TensorOptions().dtype(s.wide()).device(s.device));
  OperatorCall call;
  call.inputs = {s.leaf({1, s.rows, s.width}), s.leaf({kHeadDim}, s.wide()), s.leaf({kHeadDim}, s.wide()), angles.cos(), angles.sin()};
  call.forward = [=](const TensorList& in) -> TensorList {
    const auto [q, k, v] = split_norm_and_rotate(in[0], heads.q, heads.kv, kHeadDim, QkNorm{in[1], in[2], kEps}, RotaryTable{in[3], in[4]});
    return {q, k, v};
  };
  call.reference = [=](const TensorList& in) -> TensorList {
    const auto parts = in[0].unflatten(-1, {-1, kHeadDim}).split_with_sizes({heads.q, heads.kv, heads.kv}, 2);
    const auto normed = [&](int which) { return reference::rms_norm(parts[which], in[1 + which], kEps, in[0].scalar_type()); };
    const RotaryTable table{in[3], in[4]};
    return {reference::rotate(normed(0), table), reference::rotate(normed(1), table), parts[2]};
  };
  return call;
}

OperatorCost cost(const OperatorSizes& s) {
  const auto heads = heads_of(s);
  const int64_t packed = s.rows * s.width * bytes_of(s.dtype), normed = packed - s.rows * heads.kv * kHeadDim * bytes_of(s.dtype);
  const int64_t inverse = s.rows * (heads.q + heads.kv) * 4, table = s.rows * kHeadDim * 4, weights = 2 * kHeadDim * 4;
  return {.forward = {.read_bytes = normed + weights + table, .written_bytes = normed + inverse},
          .backward = {.read_bytes = packed + normed + weights + table + inverse,
                       .written_bytes = packed,
                       .scratch_bytes = row_sums_scratch(s.rows, 2 * kHeadDim)},
          .saved_bytes = packed + weights + table + inverse};
}

}  // namespace

std::vector<Operator> qk_norm_operators() {
  return {token_operator({.name = "split_norm_and_rotate",
                          .backward_name = "split_norm_and_rotate.backward",
                          .kind = WorkKind::attention,
                          // v has as many heads as k.
                          .forward_size =
                              [](const Shapes&, const Shapes& out) {
                                const auto &q = out.at(0).sizes, &k = out.at(1).sizes;
                                return Size{q[0] * q[1], (q[2] + 2 * k[2]) * q[3]};
                              },
                          .backward_size = size_of_output<0>,
                          .make = make,
                          .cost = cost,
                          .checked = {{11, 256}, {37, 512}},
                          .fused_on = {device::Target::cpu, device::Target::gpu}})};
}

}  // namespace ingot::kernels
