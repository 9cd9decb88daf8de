// The operators of this folder, one function a file.
#pragma once

#include <memory>

#include "kernels/operator.h"
#include "layers/parameter.h"

namespace ingot::layers {

using kernels::Operator, kernels::OperatorCall, kernels::OperatorCost, kernels::OperatorSizes, kernels::TensorList, kernels::WorkKind;

std::vector<Operator> attention_operators();
std::vector<Operator> linear_attention_operators();
std::vector<Operator> gate_operators();
std::vector<Operator> routing_operators();
std::vector<Operator> embedding_operators();

/// Parameters with small random values, which live as long as a call that keeps the list.
std::shared_ptr<ParameterList> random_parameters(std::vector<Parameter> described, const OperatorSizes& sizes);

}  // namespace ingot::layers
