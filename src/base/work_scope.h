// Names a piece of work for whoever watches: torch's profilers, tracers (device/tracer.h), and `ingot bench iteration`. Where nobody does,
// it costs some nanoseconds. For libraries that are built with torch; the others of this folder are free of it.
#pragma once

#include <ATen/record_function.h>

#include <utility>

#include "base/work_kind.h"

namespace ingot::base {

/// The work of this thread while it lives. `name` must outlive it.
class WorkScope {
 public:
  explicit WorkScope(const char* name, Work work = {}) : function_(at::RecordScope::USER_SCOPE) {
    if (!function_.isActive()) return;
    const auto outer = std::exchange(entered_, work);
    function_.before(name);
    entered_ = outer;
  }
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

  /// For callbacks of torch's: what the scope that begins says of its work.
  static Work entered() { return entered_; }

 private:
  static inline thread_local Work entered_;
  at::RecordFunction function_;
};

}  // namespace ingot::base
