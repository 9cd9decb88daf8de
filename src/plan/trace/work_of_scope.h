// What kind of work a traced operation is, by what the scopes that it ran in say of themselves (base/work_kind.h): as bench/work_watch.h
// has it while a step is timed, so that predicted and measured kinds are the same things.
#pragma once

#include <vector>

#include "device/trace.h"
#include "plan/work_kind.h"

namespace ingot::plan {

struct TracedWork {
  WorkKind kind = WorkKind::unattributed;
  bool is_backward = false;
};

class WorksOfScopes {
 public:
  /// The trace must outlive it.
  explicit WorksOfScopes(const device::Trace& trace);
  TracedWork of(const device::Trace::Operation& operation) const;

 private:
  struct Frame {
    base::Work::Rule rule = base::Work::Rule::passes;
    bool has_kind = false, is_again = false, is_backward = false;
    WorkKind kind = WorkKind::unattributed;
  };
  const device::Trace& trace_;
  std::vector<Frame> frames_;  // by scope
};

}  // namespace ingot::plan
