// The tests of operators, which every list of them instantiates in the test of its folder:
//   INSTANTIATE_TEST_SUITE_P(Kernels, OperatorTest, ::testing::ValuesIn(of(operators())), name_of);
#pragma once

#include <gtest/gtest.h>

#include "kernels/operator.h"

namespace ingot::kernels {

class OperatorTest : public ::testing::TestWithParam<const Operator*> {};

inline std::vector<const Operator*> of(const std::vector<Operator>& list) {
  std::vector<const Operator*> all;
  for (const auto& op : list) all.push_back(&op);
  return all;
}

inline std::string name_of(const ::testing::TestParamInfo<const Operator*>& info) { return std::string(info.param->name); }

}  // namespace ingot::kernels
