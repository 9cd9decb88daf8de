// One gather of the states of all ranks of a context axis, and of their maps in the forward pass.
#pragma once

#include "parallel/context/axis.h"

namespace ingot::parallel {

class StateGather {
 public:
  StateGather(const ContextAxis& axis, const at::Tensor& own) : own_(own) {
    auto sizes = own.sizes().vec();
    sizes.insert(sizes.begin(), axis.size);
    all_ = at::empty(sizes, own.options());
    work_ = axis.group->start_all_gather(all_, own_);
  }
  /// [size, …]
  at::Tensor wait() {
    work_.wait();
    return all_;
  }

 private:
  at::Tensor own_, all_;
  comm::Work work_;
};

}  // namespace ingot::parallel
