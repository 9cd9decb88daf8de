#include "plan/work_kind.h"

#include <map>

namespace ingot::plan {
namespace {

using Kind = WorkKind;

struct Titles {
  const char *name, *title;
};

constexpr Titles kTitles[kWorkKinds] = {{"products", "products"},
                                        {"attention", "attention"},
                                        {"linear_attention", "linear attention"},
                                        {"norms", "norms and joins"},
                                        {"activations", "activations"},
                                        {"embedding", "embedding"},
                                        {"head", "head and loss"},
                                        {"routing", "routing and dispatch"},
                                        {"recomputation", "recomputation"},
                                        {"gradient_norm", "gradient norm"},
                                        {"adamw", "AdamW"},
                                        {"muon", "Muon, Newton-Schulz"},
                                        {"communication", "communication, waiting"},
                                        {"data", "data"},
                                        {"elementwise", "additions, copies"},
                                        {"watching", "the watch itself"},
                                        {"unattributed", "unattributed"}};

}  // namespace

const char* name_of(WorkKind kind) { return kTitles[static_cast<size_t>(kind)].name; }
const char* title_of(WorkKind kind) { return kTitles[static_cast<size_t>(kind)].title; }

std::vector<WorkKind> all_work_kinds() {
  std::vector<WorkKind> all;
  for (size_t i = 0; i < kWorkKinds; ++i) all.push_back(static_cast<WorkKind>(i));
  return all;
}

std::optional<WorkKind> work_kind_named(const std::string& name) {
  for (const auto kind : all_work_kinds())
    if (name == name_of(kind)) return kind;
  return std::nullopt;
}

WorkKind kind_of_kernel(const std::string& name) {
  static const std::map<std::string, WorkKind> kinds = {{"rms_norm", Kind::norms},
                                                        {"join_norm", Kind::norms},
                                                        {"join", Kind::norms},
                                                        {"scaled_join_norm", Kind::norms},
                                                        {"scaled_join", Kind::norms},
                                                        {"swiglu", Kind::activations},
                                                        {"folded_mlp", Kind::products},
                                                        {"split_and_rotate", Kind::attention},
                                                        {"cca_mix", Kind::attention},
                                                        {"embedding", Kind::embedding},
                                                        {"cross_entropy", Kind::head},
                                                        {"router", Kind::routing},
                                                        {"expert_dispatch", Kind::routing},
                                                        {"short_convolution", Kind::linear_attention},
                                                        {"feature_map", Kind::linear_attention},
                                                        {"gates", Kind::linear_attention},
                                                        {"output_gate", Kind::linear_attention},
                                                        {"adamw", Kind::adamw},
                                                        {"muon", Kind::muon}};
  const auto found = kinds.find(name);
  if (found != kinds.end()) return found->second;
  return name.starts_with("linear_attention") ? Kind::linear_attention : Kind::elementwise;
}

}  // namespace ingot::plan
