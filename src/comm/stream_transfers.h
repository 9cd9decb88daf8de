// Operations of one group on tensors of emulated devices, as NCCL does them: each stands on a stream of the group's own, behind what the
// caller's current stream has to do; waiting makes the caller's stream wait, not the host.
//
// What travels is a copy of the input, made when the operation starts; the result comes into the output when the group's stream is asked
// for it, so that a caller which does not wait reads what was there before. An input, or an output, that was written to between start and
// wait is found then: a CommError. One stream for collectives and one for the messages to, and from, each rank, like the back-ends' lanes.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <tuple>

#include "comm/operation.h"
#include "comm/work.h"
#include "device/stream.h"

namespace ingot::comm {

class StreamTransfers {
 public:
  StreamTransfers() = default;
  /// Does what is still to be done, so that what was waited for is there; nothing more while an exception passes.
  ~StreamTransfers();
  StreamTransfers(const StreamTransfers&) = delete;

  static bool takes(const Operation& operation);
  /// `rank`: of this rank in the group. `transport` starts the same operation on tensors of the host.
  Work start(Operation operation, int rank, const std::function<Work(Operation)>& transport);

 private:
  const c10::Stream& stream_of(const Operation& operation, at::Device device);

  std::map<std::tuple<c10::DeviceIndex, int, bool>, c10::Stream> streams_;  // by device, peer, is it a send
  std::shared_ptr<std::atomic<bool>> is_dropped_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace ingot::comm
