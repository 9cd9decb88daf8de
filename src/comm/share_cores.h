// Threads of ranks that share a machine.
#pragma once

#include "comm/rank_environment.h"

namespace ingot::comm {

/// The ranks of a machine share its cores, unless the user said otherwise (OMP_NUM_THREADS): sets torch's number of threads.
void share_cores(const RankEnvironment& ranks);

}  // namespace ingot::comm
