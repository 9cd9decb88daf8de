// The least times of kernels on several devices, as a document.
#pragma once

#include <vector>

#include "plan/kernel_limits.h"
#include "plan/report/document.h"

namespace ingot::plan {

/// `limits`: of each cluster, the same kernels in the same order.
Document kernel_limits_document(const std::vector<schedule::Cluster>& clusters, const std::vector<std::vector<KernelLimit>>& limits,
                                const std::string& dtype);

}  // namespace ingot::plan
