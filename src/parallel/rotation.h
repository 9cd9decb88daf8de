// One tensor on its way to the next rank of a ring, another on its way here from the one before; or the other way round.
#pragma once

#include "comm/group.h"
#include "device/aten.h"

namespace ingot::parallel {

class Rotation {
 public:
  /// `leaving` must stay as it is until wait() has returned. `backwards`: to the rank before, from the next.
  Rotation(comm::Group& group, const at::Tensor& leaving, at::Tensor arriving, bool backwards = false)
      : leaving_(leaving), arriving_(std::move(arriving)) {
    const int rank = group.rank(), size = group.size(), step = backwards ? size - 1 : 1;
    const int next = (rank + step) % size, before = (rank + size - step) % size;
    const bool sends_first = rank < next;  // two ranks are each other's next
    if (sends_first) sent_ = group.start_send(leaving_, next);
    received_ = group.start_receive(arriving_, before);
    if (!sends_first) sent_ = group.start_send(leaving_, next);
  }
  at::Tensor wait() {
    received_.wait();
    sent_.wait();
    return arriving_;
  }

 private:
  at::Tensor leaving_, arriving_;
  comm::Work sent_, received_;
};

}  // namespace ingot::parallel
