// The kernels as measurable cases: inputs of a given size, and a call that a model would make of them.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ingot::bench {

struct CaseSizes {
  int64_t rows, width;
  std::string dtype;
  at::Device device;
};

struct Case {
  /// Outputs to be differentiated; empty when the work has no backward pass.
  std::function<std::vector<at::Tensor>()> forward;
  std::vector<at::Tensor> leaves;  // whose gradients are dropped after each round
  int64_t count = 1;               // how many pieces of [rows, width] one call works on
  bool alone = false;              // repeated on the same tensors, which the program also finds in its caches
};

using CaseMaker = Case (*)(const CaseSizes&);
const std::map<std::string, CaseMaker>& case_makers();

}  // namespace ingot::bench
