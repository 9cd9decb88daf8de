// Losses of the microbatches of one step. They are read at once: each read waits for the device. The sum is exact (kernels/exact_sum.h), so
// that it does not matter in which order, and on which ranks, they were added.
#pragma once

#include <vector>

#include "device/aten.h"
#include "kernels/exact_sum.h"

namespace ingot::train {

class LossSum {
 public:
  /// A single number of any floating-point type, as it is now.
  void add(const at::Tensor& loss) { losses_.push_back(loss.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true)); }
  double total() const {
    if (losses_.empty()) return 0;
    const auto host = at::stack(losses_).cpu();
    double sum = 0;
    for (int64_t i = 0; i < host.numel(); ++i) sum += kernels::rounded(host.const_data_ptr<double>()[i], kernels::kLossExponent);
    return sum;
  }

 private:
  std::vector<at::Tensor> losses_;
};

}  // namespace ingot::train
