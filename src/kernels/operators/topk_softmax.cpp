// The choice of a router behind its last matmul. rows: tokens; width: classes. Weights sum to 1 where there are eight for a token.
#include "kernels/topk_softmax.h"

#include "kernels/operators/helpers.h"

namespace ingot::kernels {
namespace {

OperatorCall make(const OperatorSizes& s) {
  const int64_t top_k = s.width >= 64 ? 8 : s.width >= 8 ? 2 : 1;
  OperatorCall call;
  call.inputs = {s.leaf({s.rows, s.width}, s.wide()), s.leaf({s.width}, s.wide()).detach()};
  call.forward = [=](const TensorList& in) -> TensorList { return {topk_softmax(in[0], in[1], top_k, top_k == 8).weight}; };
  call.reference = [=](const TensorList& in) -> TensorList {
    const auto probabilities = at::softmax(in[0], 1);
    const auto chosen = probabilities.gather(1, (probabilities + in[1]).detach().argsort(1, /*descending=*/true).narrow(1, 0, top_k));
    return {(top_k == 8 ? chosen / chosen.sum(1, /*keepdim=*/true) : chosen).flatten()};
  };
  return call;
}

}  // namespace

std::vector<Operator> topk_softmax_operators() {
  return {{.name = "topk_softmax",
           .kind = WorkKind::routing,
           .traced = {{"topk_softmax", false, size_of_input<0>}, {"topk_softmax.backward", true, size_of_output<0>}},
           .fused_on = {device::Target::gpu},
           .make = make,
           .measured = [](bool quick) { return grid(token_rows(quick), doubling(16, 256, quick)); },
           .checked = {{1, 3}, {13, 3}, {37, 17}, {70, 64}, {19, 256}}}};
}

}  // namespace ingot::kernels
