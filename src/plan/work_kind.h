// The kinds of work, in this folder's words.
#pragma once

#include "base/work_kind.h"

namespace ingot::plan {

using base::all_work_kinds, base::kWorkKinds, base::name_of, base::title_of, base::work_kind_named, base::WorkKind;

}  // namespace ingot::plan
