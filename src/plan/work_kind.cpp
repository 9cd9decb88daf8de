#include "plan/work_kind.h"

#include "optim/operators.h"

namespace ingot::plan {

WorkKind kind_of_kernel(const std::string& name) {
  const auto& all = optim::operators();
  if (const auto* op = kernels::find_operator(all, name)) return op->kind;
  if (const auto* op = kernels::operator_of_kernel(all, name)) return op->kind;
  return name == "folded_mlp" ? WorkKind::products : WorkKind::elementwise;  // matmuls in between communication
}

}  // namespace ingot::plan
