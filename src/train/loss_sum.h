// Losses of the microbatches of one step, added up in their order. They are read at once: each read waits for the device.
#pragma once

#include <vector>

#include "device/aten.h"

namespace ingot::train {

class LossSum {
 public:
  /// A single number of any floating-point type, as it is now.
  void add(const at::Tensor& loss) { losses_.push_back(loss.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true)); }
  double total() const {
    if (losses_.empty()) return 0;
    const auto host = at::stack(losses_).cpu();
    double sum = 0;
    for (int64_t i = 0; i < host.numel(); ++i) sum += host.const_data_ptr<double>()[i];
    return sum;
  }

 private:
  std::vector<at::Tensor> losses_;
};

}  // namespace ingot::train
