// Words that the operators of this folder are written in.
#pragma once

#include <memory>

#include "kernels/operator.h"
#include "layers/parameter.h"

namespace ingot::layers {

using kernels::Operator, kernels::OperatorCall, kernels::OperatorCost, kernels::OperatorSizes, kernels::TensorList, kernels::WorkKind;

/// Parameters with small random values, which live as long as a call that keeps the list.
std::shared_ptr<ParameterList> random_parameters(std::vector<Parameter> described, const OperatorSizes& sizes);

}  // namespace ingot::layers
