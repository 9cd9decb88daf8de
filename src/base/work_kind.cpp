#include "base/work_kind.h"

namespace ingot::base {
namespace {

struct Titles {
  const char *name, *title;
};

constexpr Titles kTitles[kWorkKinds] = {{"matmul", "matmul"},
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

}  // namespace ingot::base
