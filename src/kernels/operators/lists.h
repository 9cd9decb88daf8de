// The operators of this folder, one function a file.
#pragma once

#include "kernels/operator.h"

namespace ingot::kernels {

std::vector<Operator> norm_operators();
std::vector<Operator> swiglu_operators();
std::vector<Operator> rotate_operators();
std::vector<Operator> cca_operators();
std::vector<Operator> short_convolution_operators();
std::vector<Operator> feature_map_operators();
std::vector<Operator> cross_entropy_operators();

}  // namespace ingot::kernels
