// Causal attention of four query heads and two kv heads. rows: tokens of one sequence; width: of a head. Profiles have its times in a table
// of their own (plan/profile.h, AttentionTime).
#include "layers/attention.h"

#include "kernels/attention.h"
#include "kernels/operators/helpers.h"
#include "layers/operators/helpers.h"

namespace ingot::layers {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2;

double scale_of(int64_t head_dim) { return 1 / std::sqrt(static_cast<double>(head_dim)); }

OperatorCall make(const OperatorSizes& s) {
  const auto heads = [&](int64_t count) { return s.leaf({1, s.rows, count, s.width}); };
  const auto sequences = std::make_shared<Sequences>(1, s.rows, at::Tensor(), 0, s.device);
  OperatorCall call;
  call.inputs = {heads(kHeads), heads(kKvHeads), heads(kKvHeads)};
  call.forward = [=, scale = scale_of(s.width)](const TensorList& in) -> TensorList {
    return {attention(in[0], in[1], in[2], scale, 0, *sequences, {})};
  };
  call.reference = [scale = scale_of(s.width)](const TensorList& in) -> TensorList {
    const auto by_head = [](const at::Tensor& x) { return x.transpose(1, 2).repeat_interleave(kHeads / x.size(2), 1); };
    const auto hidden = at::ones({in[0].size(1), in[0].size(1)}, in[0].options().dtype(at::kBool)).triu(1);
    const auto scores = (at::matmul(by_head(in[0]), by_head(in[1]).transpose(2, 3)) * scale).masked_fill(hidden, -1e300);
    return {at::matmul(at::softmax(scores, -1), by_head(in[2])).transpose(1, 2).flatten(2)};
  };
  return call;
}

OperatorCost cost(const OperatorSizes& s) {
  const double pairs = static_cast<double>(s.rows) * static_cast<double>(s.rows + 1) / 2;
  const double flops = 4 * pairs * static_cast<double>(kHeads * s.width);
  const int64_t q = s.rows * kHeads * s.width * kernels::bytes_of(s.dtype), kv = 2 * q * kKvHeads / kHeads, sums = s.rows * kHeads * 4;
  // Work areas are of each thread's, of which the engine of autograd may have another number.
  const auto scratch = kernels::attention_scratch(1, s.rows, kHeads, kKvHeads, s.width, s.dtype);
  return {.forward = {flops, q + kv, q + sums, scratch.forward_bytes},
          .backward = {2 * flops, 3 * q + kv + sums, q + kv, OperatorCost::kVaries},
          .saved_bytes = 2 * q + kv + sums};
}

}  // namespace

std::vector<Operator> attention_operators() {
  return {{.name = "attention",
           .kind = WorkKind::attention,
           .traced = {{"attention", false}, {"attention.backward", true}},
           .fused_on = {device::Target::cpu, device::Target::gpu},
           .make = make,
           .cost = cost,
           .checked = {{37, 16}, {130, 24}}}};
}

}  // namespace ingot::layers
