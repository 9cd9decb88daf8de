// The kinds of work (base/work_kind.h) by the names of the kernels that predictions know.
#pragma once

#include <string>

#include "base/work_kind.h"

namespace ingot::plan {

using base::all_work_kinds, base::kWorkKinds, base::name_of, base::title_of, base::work_kind_named, base::WorkKind;

/// What the operator of that name, or with a traced kernel of that name, says (kernels/operator.h); `elementwise` where there is none.
WorkKind kind_of_kernel(const std::string& name);

}  // namespace ingot::plan
