#include "plan/work_kind.h"

#include <map>

namespace ingot::plan {

using Kind = WorkKind;

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
