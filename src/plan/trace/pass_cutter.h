// Takes the trace of a pass apart into embedding, blocks and head. Inner header.
#pragma once

#include "plan/trace/pass_trace.h"

namespace ingot::plan {

/// `layers`: of the model that was traced.
void cut(const device::Trace& trace, int64_t layers, PassTrace& result);

}  // namespace ingot::plan
