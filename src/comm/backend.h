// What carries out the operations of one group on one kind of fabric. Groups check arguments, count and record before they
// come here, so a back-end sees well-formed operations only, each group's collectives in the order of the calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/operation.h"
#include "comm/work.h"

namespace ingot::comm {

class Backend {
 public:
  virtual ~Backend() = default;
  /// "threads", "shared_memory", "gloo" or "nccl".
  virtual std::string name() const = 0;
  /// Starts the operation. `blocking`: the caller will wait at once, so that it may run on the caller's thread.
  virtual Work start(Operation operation, bool blocking) = 0;
};

}  // namespace ingot::comm
