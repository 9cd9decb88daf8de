// Gated MLPs, mixtures of them and their routers, of a pass' tokens: Slot::normed -> Slot::branch.
#pragma once

#include "kernels/gate.h"
#include "layers/router.h"
#include "models/decode/program.h"

namespace ingot::models::decode {

struct GatedMlp {
  layers::Parameter *gate = nullptr, *up = nullptr, *down = nullptr;
  layers::Parameter *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;  // some may be null
  kernels::Gate kind = kernels::Gate::silu;
  /// Added to the branch that is there already, times the sigmoid of this row [1, hidden] by the stream, where it is not null.
  bool is_beside = false;
  layers::Parameter* weight_of_branch = nullptr;
};
/// Adds its steps; false where its weights cannot be taken.
bool add_mlp(Program& program, const GatedMlp& mlp);

/// What a router leaves for the experts of its layer.
struct Choices {
  int64_t top_k = 1, experts = 0;
  std::vector<float> weight;    // [rows * top_k]
  std::vector<int64_t> choice;  // the same; experts and more: skipped
  // Slots of experts, sorted: of each expert begin[e] to begin[e + 1].
  std::vector<int64_t> begin, slots, tokens;
  std::vector<float> slot_weight;
  void sort();
};

bool add_router(Program& program, const layers::LinearRouterParameters& router, const std::shared_ptr<Choices>& choices);
bool add_router(Program& program, const layers::RouterParameters& router, double norm_eps, const std::shared_ptr<Choices>& choices);

struct Experts {
  layers::Parameter *gate_up = nullptr, *down = nullptr, *gate_up_bias = nullptr, *down_bias = nullptr;
  kernels::Gate kind = kernels::Gate::silu;
  bool skipped_stay = false;  // a skipped token gets itself times its weight, not 0
};
bool add_experts(Program& program, const Experts& experts, const std::shared_ptr<Choices>& choices);

}  // namespace ingot::models::decode
