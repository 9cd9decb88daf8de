// What the verbs that run on several ranks have in common.
#pragma once

#include "comm/rank_environment.h"

namespace ingot::cli {

/// The ranks of a machine share its cores, unless the user said otherwise.
void share_cores(const comm::RankEnvironment& ranks);

}  // namespace ingot::cli
