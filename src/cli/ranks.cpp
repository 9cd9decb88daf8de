#include "cli/ranks.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "base/environment.h"
#include "base/process.h"

namespace ingot::cli {

void share_cores(const comm::RankEnvironment& ranks) {
  if (ranks.size > 1 && base::environment().omp_num_threads.empty())
    at::set_num_threads(std::max(1, base::usable_cores() / ranks.local_size));
}

}  // namespace ingot::cli
