// Names a piece of work for whoever watches: torch's profilers, and `ingot bench iteration`. Where nobody does, it costs some
// nanoseconds. For libraries that are built with torch; the others of this folder are free of it.
#pragma once

#include <ATen/record_function.h>

#include <string>

namespace ingot::base {

/// The work of this thread while it lives. `name` must outlive it; plan/work_names.cpp says what kind of work each name is.
class WorkScope {
 public:
  explicit WorkScope(const char* name) : function_(at::RecordScope::USER_SCOPE) {
    if (function_.isActive()) function_.before(name);
  }
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  at::RecordFunction function_;
};

}  // namespace ingot::base
