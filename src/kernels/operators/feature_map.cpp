// The map that costs most of those without weights. rows: tokens; width: of all heads, 64 channels each.
#include "kernels/feature_map.h"

#include "kernels/operators/helpers.h"

namespace ingot::kernels {
namespace {

constexpr int64_t kHeadDim = 64;

OperatorCall make(const OperatorSizes& s) {
  return {.inputs = {s.leaf({1, s.rows, s.width / kHeadDim, kHeadDim})},
          .forward = [](const TensorList& in) -> TensorList { return {feature_map(in[0], FeatureMap::l2)}; },
          .reference = {}};
}

}  // namespace

std::vector<Operator> feature_map_operators() {
  return {{.name = "feature_map",
           .kind = WorkKind::linear_attention,
           .make = make,
           .measured = [](bool quick) { return grid(token_rows(quick), doubling(256, quick ? 1024 : 2048, quick)); },
           .checked = {{70, 128}}}};
}

}  // namespace ingot::kernels
