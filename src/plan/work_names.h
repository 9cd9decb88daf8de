// The kinds of work (base/work_kind.h) of torch's operators that nobody's scope claims.
#pragma once

#include <optional>
#include <string_view>

#include "base/work_kind.h"

namespace ingot::plan {

using base::WorkKind, base::kWorkKinds, base::all_work_kinds, base::name_of, base::title_of;

/// Of "aten::mm" and the like; nothing for others.
std::optional<WorkKind> kind_of_operator(std::string_view name);
/// Whether an operator multiplies matrices.
bool is_gemm(std::string_view operator_name);

}  // namespace ingot::plan
