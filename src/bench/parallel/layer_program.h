// A layer over ranks as the operations of every rank (schedule/operation_list.h), from traces of the layer itself on a counting device:
// what each rank computes and sends, in the order in which it does so. Pure functions; a thread at a time traces.
//
// In it is all that a pass over the layer does on the device, gradients and their sums included; not in it are embedding, head, optimizer,
// and axes other than the method's.
#pragma once

#include "device/trace.h"
#include "device/virtual_device.h"
#include "schedule/layout.h"
#include "schedule/operation_list.h"

namespace ingot::bench {

struct LayerProgram {
  schedule::Program program;
  int64_t peak_bytes = 0;  // storages of the rank with most: weights, gradients, activations, buffers
};

/// `target`: whose kernels. Ranks that do the same are traced once. Throws ConfigError for a layout that schedule::check refuses.
LayerProgram trace_layer(const schedule::Layout& layout, device::Target target);

/// The operators of linear attention have names that begin so, be they one kernel or several of torch's ("linear_attention: bmm").
inline constexpr const char* kLinearAttention = "linear_attention";

/// The operations of a trace, under the names of their kernels. Communication begins when what its stream computed before has ended; what
/// its stream does after a wait begins when the communication has ended. Streams besides the default one are taken to be one.
schedule::OperationList operations_of(const device::Trace& trace, int rank);

}  // namespace ingot::bench
