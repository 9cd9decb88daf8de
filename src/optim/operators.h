// All operators: those of kernels/ and layers/, and the updates of parameters.
#pragma once

#include <vector>

#include "kernels/operator.h"

namespace ingot::optim {

const std::vector<kernels::Operator>& operators();

}  // namespace ingot::optim
