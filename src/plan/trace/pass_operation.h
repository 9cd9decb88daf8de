// An operation as traces of passes and updates have it, with those that are alike counted as one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/trace.h"
#include "plan/work_kind.h"

namespace ingot::plan {

/// Operations of one name and shape that do the same kind of work.
struct PassOperation {
  std::string name;  // "aten::mm", or one of ingot's own kernels
  std::vector<device::Trace::TensorShape> inputs, outputs;
  WorkKind kind = WorkKind::unattributed;
  bool is_backward = false;
  double flops = 0;  // of one, as are the bytes
  int64_t read_bytes = 0, written_bytes = 0;
  int64_t calls = 0;

  int64_t moved_bytes() const { return read_bytes + written_bytes; }
};

}  // namespace ingot::plan
