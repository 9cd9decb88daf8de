// One chunk of logits, which the matmuls before and after it find in the caches: losses, and the gradient in the dtype that the next
// matmuls take. rows: tokens of the chunk; width: of the vocabulary.
#include "kernels/cross_entropy.h"

#include "kernels/operators/helpers.h"

namespace ingot::kernels {
namespace {

constexpr double kScale = 1e-3;

OperatorCall make(const OperatorSizes& s) {
  OperatorCall call;
  call.is_repeatable = true;
  call.inputs = {s.leaf({s.rows, s.width}, s.wide()).detach(), s.indices(s.width, {s.rows})};
  call.forward = [dtype = s.dtype](const TensorList& in) -> TensorList {
    const auto gradient = dtype == in[0].scalar_type() ? in[0] : at::empty_like(in[0], dtype);
    return {cross_entropy(in[0], in[1], kScale, gradient), gradient};
  };
  call.reference = [](const TensorList& in) -> TensorList {
    const auto chosen = in[1].unsqueeze(1);
    const auto gradient = (at::softmax(in[0], 1) - at::zeros_like(in[0]).scatter(1, chosen, 1.0)) * kScale;
    return {-at::log_softmax(in[0], 1).gather(1, chosen).squeeze(1), gradient};
  };
  return call;
}

OperatorCost cost(const OperatorSizes& s) {
  const int64_t logits = s.rows * s.width;
  return {.forward = {.read_bytes = 4 * logits + s.rows * 8,
                      .written_bytes = logits * static_cast<int64_t>(c10::elementSize(s.dtype)) + s.rows * 4}};
}

}  // namespace

std::vector<Operator> cross_entropy_operators() {
  return {{.name = "cross_entropy",
           .kind = WorkKind::head,
           .traced = {{"cross_entropy", false, size_of_input<0>}, {"cross_entropy_part", false, size_of_input<0>}},
           .fused_on = {device::Target::cpu, device::Target::gpu},
           .make = make,
           .cost = cost,
           .measured =
               [](bool quick) {
                 return grid(quick ? std::vector<int64_t>{256} : std::vector<int64_t>{64, 256, 1024},
                             doubling(4096, quick ? 16384 : 65536, quick));
               },
           .checked = {{21, 2}, {21, 101}, {9, 513}}}};
}

}  // namespace ingot::kernels
