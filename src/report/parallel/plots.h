// Time, communication and memory of the methods of one group over the length of the sequence.
#pragma once

#include <string>
#include <vector>

#include "report/parallel/group.h"

namespace ingot::report {

/// `<figure>`s. `names` from method_names().
std::string parallel_plots(const ParallelGroup& group, const std::vector<std::string>& names);

}  // namespace ingot::report
