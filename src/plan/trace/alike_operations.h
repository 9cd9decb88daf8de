// Operations of a trace with those that are alike, in name, kind of work and shapes, counted as one.
#pragma once

#include <map>
#include <vector>

#include "device/trace.h"
#include "plan/trace/pass_operation.h"
#include "plan/trace/work_of_scope.h"

namespace ingot::plan {

class AlikeOperations {
 public:
  /// The trace must outlive it.
  explicit AlikeOperations(const device::Trace& trace) : trace_(trace), works_(trace) {}

  /// Another list of operations begins: nothing of the last one is known in it.
  void begin() { known_.clear(); }
  /// Counts one in the list, and returns where that has it.
  int32_t count(const device::Trace::Operation& operation, std::vector<PassOperation>& list);

 private:
  const device::Trace& trace_;
  WorksOfScopes works_;
  std::map<std::vector<int64_t>, int32_t> known_;
};

}  // namespace ingot::plan
