#include "comm/share_cores.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "base/process.h"

namespace ingot::comm {

void share_cores(const RankEnvironment& ranks) {
  if (ranks.size > 1 && base::environment().omp_num_threads.empty())
    at::set_num_threads(std::max(1, base::usable_cores() / ranks.local_size));
}

}  // namespace ingot::comm
