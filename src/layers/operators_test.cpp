#include "layers/operators.h"

#include "kernels/operator_checks.h"

namespace ingot::kernels {

INSTANTIATE_TEST_SUITE_P(Layers, OperatorTest, ::testing::ValuesIn(of(layers::layer_operators())), name_of);

}  // namespace ingot::kernels
